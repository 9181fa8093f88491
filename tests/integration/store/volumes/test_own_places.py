"""What stands in the place of a lock or of a directory of the volume's own: it is moved aside, and
the volume serves (agent.store.volumes.own_places)."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.store.files.layout import VolumeLayout
from agent.store.options import StoreOptions
from agent.store.volumes import own_places
from agent.store.volumes.volume import open_volume, reading_lock
from merkle.replica import BlockId
from suture.errors import Code, RefusedError, SutureError
from tests.support.storage.stored_replica import CHUNK_BYTES, CLUSTER, CONTAINER, StoredReplica

FILES: dict[str, Callable[[VolumeLayout], Path]] = {
    "in_use.lock": lambda layout: layout.hdds / "in_use.lock",
    "NEW": lambda layout: layout.hdds / "NEW",
    "VOLUMES": lambda layout: layout.hdds / CLUSTER / "VOLUMES",
    "lock.mdb": lambda layout: layout.hdds / CLUSTER / "db" / "lock.mdb",
}
DIRECTORIES: dict[str, Callable[[VolumeLayout], Path]] = {
    name: lambda layout, name=name: layout.hdds / CLUSTER / name  # type: ignore[misc]
    for name in (
        *("tmp", "tmp/importing", "tmp/deleting", "tmp/probe"),
        *("canary", "quarantine", "verification"),
    )
}
PLACES = FILES | DIRECTORIES


def a_directory(path: Path, _outside: Path) -> None:
    """Put a directory there, with something in it."""
    path.mkdir()
    (path / "precious").write_bytes(b"somebody's")


def a_file(path: Path, _outside: Path) -> None:
    """Put a file there."""
    path.write_bytes(b"somebody's")


def a_pipe(path: Path, _outside: Path) -> None:
    """Put a pipe there, on which a reader would wait for ever."""
    os.mkfifo(path)


def a_link(path: Path, outside: Path) -> None:
    """Put a link there, to what is not ours."""
    path.symlink_to(outside)


def a_socket(path: Path, _outside: Path) -> None:
    """Put a socket there, by a short name."""
    directory = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/fd/{directory}/{path.name}")
    os.close(directory)


Put = Callable[[Path, Path], None]
WRONG: list[tuple[str, Put]] = [
    *((name, put) for name in FILES for put in (a_directory, a_pipe, a_link, a_socket)),
    *((name, put) for name in DIRECTORIES for put in (a_file, a_pipe, a_link, a_socket)),
]


def closed_volume(path: Path) -> VolumeLayout:
    """Make a volume with one closed replica that nobody serves now."""
    path.mkdir()
    replica = StoredReplica(path)
    replica.create()
    replica.close()
    return VolumeLayout(path, CLUSTER)


def take_away(path: Path, to: Path) -> None:
    """Move what belongs in a place away, if it is there."""
    if path.exists():
        path.rename(to)


@pytest.mark.parametrize(
    ("name", "put"), WRONG, ids=[f"{name}-{put.__name__}" for name, put in WRONG]
)
def test_something_else_in_an_own_place_is_moved_aside(tmp_path: Path, name: str, put: Put) -> None:
    """
    The volume serves and takes writes; what stood there is kept as it was, beside its place, and
    nothing was done to what it led to.
    """
    outside = tmp_path / "outside"
    outside.mkdir() if name in DIRECTORIES else outside.write_bytes(b"not ours")
    layout = closed_volume(tmp_path / "volume")
    path = PLACES[name](layout)
    take_away(path, tmp_path / "taken")
    put(path, outside)
    before = path.lstat()

    replica = StoredReplica(layout.volume)
    try:
        replica.store.view(CONTAINER).read(BlockId(1), 0, CHUNK_BYTES)
        replica.store.create_container(CONTAINER + 1)
        replica.scan()
        probed = replica.store.volume_set.probe(replica.store.volumes()[0].volume_id)
    finally:
        replica.close()

    aside = path.with_name(f"{path.name}.aside1")
    after = aside.lstat()
    assert (before.st_ino, before.st_mode, before.st_size) == (
        after.st_ino,
        after.st_mode,
        after.st_size,
    )
    assert "" == probed.error
    belongs = stat.S_ISDIR if name in DIRECTORIES else stat.S_ISREG
    assert not path.exists() or belongs(path.lstat().st_mode)
    assert (
        [] == list(outside.iterdir())
        if name in DIRECTORIES
        else b"not ours" == (outside.read_bytes())
    )


def test_a_lock_is_not_moved_on_a_volume_of_another_host(tmp_path: Path) -> None:
    """The foreign volume is left as it is, and the error says that it is another's."""
    layout = closed_volume(tmp_path / "volume")
    lock = FILES["in_use.lock"](layout)
    lock.unlink()
    lock.mkdir()

    with pytest.raises(SutureError):
        open_volume(
            layout.volume, cluster_id=CLUSTER, datanode_id="another", options=StoreOptions()
        )

    assert lock.is_dir()
    assert [] == list(layout.hdds.glob("*.aside*"))


def test_a_reader_moves_nothing(tmp_path: Path) -> None:
    """
    suture fsck and salvage read a volume that may be mounted read-only.
    """
    layout = closed_volume(tmp_path / "volume")
    lock = FILES["in_use.lock"](layout)
    lock.unlink()
    os.mkfifo(lock)

    with reading_lock(layout):
        pass

    assert stat.S_ISFIFO(lock.lstat().st_mode)


def test_a_place_that_is_filled_again_and_again_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator has to find the cause, and a volume must not fill up with files that were put
    aside.
    """
    monkeypatch.setattr(own_places, "ASIDE_MAX", 2)
    layout = closed_volume(tmp_path / "volume")
    path = DIRECTORIES["quarantine"](layout)
    path.rename(tmp_path / "taken")
    for number in (1, 2):
        path.with_name(f"quarantine.aside{number}").mkdir()
    path.write_bytes(b"somebody's")

    with pytest.raises(RefusedError, match="were moved away 2 times") as refused:
        StoredReplica(layout.volume)

    assert Code.INCONSISTENT_VOLUME is refused.value.code
