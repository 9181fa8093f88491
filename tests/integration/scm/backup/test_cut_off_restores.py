"""A restore that was killed is begun anew, and nothing takes its place meanwhile."""

import os
import signal
from pathlib import Path

import pytest

from scm.backup.backup_writer import take_backup
from scm.backup.restore import restore_backup
from scm.state.database import StateDatabase
from scm.state.state_directory import GROWING
from suture.errors import Code, RefusedError
from tests.support.control.scm_world import MAP_BYTES, ScmWorld, confirm
from tests.support.heard import logged

NODES = ("dn1", "dn2", "dn3")
NOW_MS = 1_800_000_000_000


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A backup of a small cluster."""
    world = ScmWorld(tmp_path / "data")
    world.join(*NODES)
    confirm(world, *NODES)
    world.made_closed()
    world.state.close()
    return take_backup(tmp_path / "data", tmp_path / "to", now_ms=NOW_MS, version="1").path


@pytest.fixture
def new(tmp_path: Path, backup: Path) -> Path:
    """A directory into which a restore was killed when it had copied all."""

    def die(_count: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        restore_backup(backup, tmp_path / "new", now_ms=NOW_MS + 1, looked_at=die)
    _, status = os.waitpid(child, 0)
    assert signal.SIGKILL == os.WTERMSIG(status)
    assert (tmp_path / "new" / GROWING / "data.mdb").exists()
    return tmp_path / "new"


def test_killed_restore_can_be_started_again(backup: Path, new: Path) -> None:
    """An operator does not have to decide which files of the directory may be removed."""
    done = restore_backup(backup, new, now_ms=NOW_MS + 2)

    assert done.was_cut_off
    assert {"LOCK", "state"} == {path.name for path in new.iterdir()}
    state = StateDatabase.open(new, map_bytes=MAP_BYTES)
    assert state.restored is not None
    assert done.manifest.cluster_id == state.cluster_id
    state.close()


def test_no_control_plane_begins_there(backup: Path, new: Path) -> None:
    """The control plane would create a new cluster in place of the restore, and no datanode
    would join it.
    """
    with pytest.raises(RefusedError, match="was interrupted") as refused:
        StateDatabase.open(new, map_bytes=MAP_BYTES)

    assert Code.INCONSISTENT_VOLUME is refused.value.code
    assert not (new / "state").exists()
    assert restore_backup(backup, new, now_ms=NOW_MS + 2).was_cut_off


def test_beside_a_state_it_is_removed_and_told(new: Path, tmp_path: Path) -> None:
    """Older versions left such a file beside a state that began all the same. The file takes the
    room of a state.
    """
    (tmp_path / "data" / "state").rename(new / "state")

    with logged() as said:
        StateDatabase.open(new, map_bytes=MAP_BYTES).close()

    assert not (new / GROWING).exists()
    assert ["incomplete_restore_removed"] == [line["event"] for line in said]


@pytest.mark.parametrize("is_link", [False, True], ids=["more", "link"])
def test_foreign_files_in_a_cut_off_restore_are_kept(
    backup: Path, new: Path, tmp_path: Path, is_link: bool
) -> None:
    """An operator may have put them there."""
    if is_link:
        (new / GROWING).rename(tmp_path / "elsewhere")
        (new / GROWING).symlink_to(tmp_path / "elsewhere")
    else:
        (new / GROWING / "notes.txt").write_text("mine")

    with pytest.raises(RefusedError, match=f"it is not empty: {GROWING}"):
        restore_backup(backup, new, now_ms=NOW_MS + 2)

    assert (new / GROWING / "data.mdb").exists()
