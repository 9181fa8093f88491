"""A page of the control plane's state that the disk lost: somebody has to be told what to do."""

import signal
from pathlib import Path
from typing import Final

import pytest

from scm.backup.backup_writer import take_backup
from scm.state import page_check
from scm.state.database import StateDatabase
from scm.state.entities import Node, OpState
from suture.errors import Code, RefusedError
from tests.support.control.scm_process import ScmProcess, spawn
from tests.support.control.scm_world import MAP_BYTES

pytestmark = pytest.mark.fault

PAGE_BYTES: Final = 4096
META_PAGES: Final = 2
NOW_MS: Final = 1_800_000_000_000


def fill(path: Path) -> Path:
    """Make a state of some dozens of pages; return its file."""
    state = StateDatabase.open(path, map_bytes=MAP_BYTES)
    with state.change() as change:
        for number in range(1_000):
            name = f"dn{number}"
            change.put(
                state.nodes, Node(name, f"{name}:1", "/r", "1", 9, OpState.IN_SERVICE, 0, 1, 2)
            )
    state.close()
    return path / "state" / "data.mdb"


def lose(file: Path, page: int) -> None:
    """Put zeros in the place of a page, as a disk does that lost a write."""
    octets = bytearray(file.read_bytes())
    octets[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = bytes(PAGE_BYTES)
    file.write_bytes(octets)


def lose_some_nodes(file: Path) -> None:
    """Lose the page with the row of one of the nodes in the middle: a start reads all of them."""
    whole = file.read_bytes()
    for page in range(META_PAGES, len(whole) // PAGE_BYTES):
        if b"dn500:1" in whole[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]:
            lose(file, page)


def test_a_start_names_the_state_and_the_way_out(tmp_path: Path) -> None:
    """A process that dies repeatedly of a signal gives an operator no hint to restore a backup."""
    lose_some_nodes(fill(tmp_path / "data"))

    process = spawn(tmp_path / "data")
    _said, told = process.communicate(60)

    assert 1 == process.returncode
    assert f"the state in {tmp_path / 'data' / 'state'} has a damaged page" in str(told)
    assert "suture scm restore" in str(told)


def test_state_refused_for_a_damaged_page_is_not_left_locked(tmp_path: Path) -> None:
    """A state that failed the page check can be inspected, moved and opened again."""
    file = fill(tmp_path / "data")
    whole = file.read_bytes()
    lose_some_nodes(file)

    with pytest.raises(RefusedError, match="has a damaged page"):
        StateDatabase.open(tmp_path / "data", map_bytes=MAP_BYTES, check=page_check.check_pages)

    file.write_bytes(whole)
    StateDatabase.open(tmp_path / "data", map_bytes=MAP_BYTES, check=page_check.check_pages).close()


def test_a_backup_is_refused_and_the_older_ones_stay(tmp_path: Path) -> None:
    """The command of every hour must say so, too: it may be the first to read that page."""
    file = fill(tmp_path / "data")
    older = take_backup(
        tmp_path / "data", tmp_path / "to", now_ms=NOW_MS, version="1", keep_count=0
    )
    lose_some_nodes(file)

    with pytest.raises(RefusedError, match="has a damaged page") as caught:
        take_backup(
            tmp_path / "data", tmp_path / "to", now_ms=NOW_MS + 1, version="1", keep_count=1
        )

    assert Code.INCONSISTENT_VOLUME is caught.value.code
    names = [one.name for one in (tmp_path / "to").iterdir() if not one.name.startswith(".")]
    assert [older.path.name] == names


def test_every_page_in_use_is_looked_at(tmp_path: Path) -> None:
    """The check covers the rows that a start does not read and the list of free pages. A later
    write or query would otherwise meet the damage.
    """
    file = fill(tmp_path / "data")
    whole = file.read_bytes()
    page_check.check_pages(file.parent)
    found = 0
    for page in range(META_PAGES, len(whole) // PAGE_BYTES):
        lose(file, page)
        try:
            page_check.check_pages(file.parent)
        except RefusedError:
            found += 1
        else:  # it is free: the state is as good as before
            StateDatabase.open(tmp_path / "data", map_bytes=MAP_BYTES).close()
        file.write_bytes(whole)

    assert found > 20


def test_page_check_ended_by_sigterm_reports_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd ends all processes of a unit at once, so a check that was ended has no result."""
    file = fill(tmp_path / "data")
    script = tmp_path / "killed.py"
    script.write_text(f"import os; os.kill(os.getpid(), {int(signal.SIGTERM)})")
    monkeypatch.setattr(page_check, "__file__", str(script))

    page_check.check_pages(file.parent)


def test_a_working_control_plane_is_not_disturbed(tmp_path: Path) -> None:
    """The pages that a backup looks at are those of one instant, whatever is written meanwhile."""
    scm = ScmProcess.start(tmp_path / "data")
    try:
        page_check.check_pages(tmp_path / "data" / "state")
    finally:
        assert 0 == scm.terminate()
