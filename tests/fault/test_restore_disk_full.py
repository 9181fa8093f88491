"""A restore onto a disk without enough room says so, and what to do: there is no second try at
leisure while a cluster has no control plane."""

from pathlib import Path

import pytest

from scm.backup.backup_writer import take_backup
from scm.backup.image import ROOM_BYTES
from scm.backup.restore import restore_backup
from scm.state.state_directory import GROWING
from suture.errors import Code, UnavailableError
from tests.support.control.scm_world import MAP_BYTES, ScmWorld, confirm
from tests.support.faults.small_disk import small_disk

pytestmark = pytest.mark.fault

NOW_MS = 1_800_000_000_000
DISK_BYTES = 2 * MAP_BYTES


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A backup of a small cluster."""
    world = ScmWorld(tmp_path / "data")
    world.join("dn1", "dn2", "dn3")
    confirm(world, "dn1", "dn2", "dn3")
    world.made_closed()
    world.state.close()
    return take_backup(tmp_path / "data", tmp_path / "to", now_ms=NOW_MS, version="1").path


def test_restore_without_room_writes_nothing_and_names_the_room(
    backup: Path, tmp_path: Path
) -> None:
    """If the disk has room for the state but not for one change, the restore writes nothing and
    reports the free bytes.
    """
    size_bytes = (backup / "state" / "data.mdb").stat().st_size
    with small_disk(tmp_path / "disk", size_bytes=size_bytes + 20_480) as disk:
        with pytest.raises(UnavailableError, match="are free") as caught:
            restore_backup(backup, disk.path / "scm" / "new", now_ms=NOW_MS + 1)

        assert Code.DISK_OUT_OF_SPACE is caught.value.code
        assert [] == list(disk.path.iterdir())


def test_restore_counts_leftovers_of_a_killed_restore_as_free_room(
    backup: Path, tmp_path: Path
) -> None:
    """The leftovers of a killed restore do not prevent a new one on a disk with room for one
    state.
    """
    size_bytes = (backup / "state" / "data.mdb").stat().st_size
    with small_disk(tmp_path / "disk", size_bytes=size_bytes * 3 // 2 + ROOM_BYTES) as disk:
        left = disk.path / "new" / GROWING
        left.mkdir(parents=True)
        (left / "data.mdb").write_bytes(bytes(size_bytes))

        assert restore_backup(backup, disk.path / "new", now_ms=NOW_MS + 1).was_cut_off


def test_disk_filled_during_restore_is_reported_with_what_to_remove(
    backup: Path, tmp_path: Path
) -> None:
    """Another writer fills the disk after the copy: the restore fails and its hint names the
    directory to remove.
    """
    with small_disk(tmp_path / "disk", size_bytes=DISK_BYTES) as disk:
        new = disk.path / "new"

        with pytest.raises(UnavailableError, match="cannot write") as caught:
            restore_backup(backup, new, now_ms=NOW_MS + 1, looked_at=lambda _count: disk.fill())

        assert Code.IO_EXCEPTION is caught.value.code
        assert f"remove the incomplete {new / GROWING}" in caught.value.hint
        assert not (new / "state").exists()
