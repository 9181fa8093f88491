"""fsck: every kind of problem is seen, named, and nothing is changed by looking."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from agent.store.files.layout import ReplicaPaths, VolumeLayout
from agent.store.index.environment import Index
from agent.store.index.rows import TreeEntry
from agent.store.recovery import fsck as fsck_module
from agent.store.recovery.fsck import fsck
from agent.store.replica.descriptor import read_descriptor, write_descriptor
from merkle.replica import BlockId, ContainerId, ReplicaState
from merkle.tree_codec import encode_tree
from suture.errors import Code, RefusedError
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stores import (
    CHUNK_BYTES,
    CLUSTER,
    chunk_of,
    closed_replica,
    content,
    flip_bit,
    open_store,
)
from tests.support.storage.tree_model import bury

ONE, TWO = ContainerId(1), ContainerId(2)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A volume with a closed replica 1 and an open one 2, both in order."""
    store = open_store(tmp_path)
    closed_replica(store)
    remove_blocks(store, ONE, [BlockId(3)])
    store.create_container(TWO)
    data = content("pending")
    store.writer(TWO).write_chunk(BlockId(1), chunk_of(data), data)
    with store.paths(TWO).block_file(BlockId(1)).open("ab") as file:
        file.write(b"a write that was cut off")
    store.close()
    return tmp_path / "v0"


def paths_of(volume: Path) -> ReplicaPaths:
    """The files of replica 1."""
    return VolumeLayout(volume, CLUSTER).replica(ONE)


def in_index(volume: Path, change: Callable[..., object]) -> None:
    """Change the index behind the store's back."""
    index = Index(VolumeLayout(volume, CLUSTER).database, map_bytes=64 * 1024**2)
    index.write(change)
    index.close()


def truncate(path: Path, length_bytes: int) -> None:
    """Cut a file."""
    path.write_bytes(path.read_bytes()[:length_bytes])


def append(path: Path) -> None:
    """Make a file longer."""
    path.write_bytes(path.read_bytes() + b"garbage")


def set_row(volume: Path, **changes: object) -> None:
    """Change fields of the replica's row."""
    in_index(
        volume,
        lambda rows: rows.put_replica(ONE, replace(rows.replica(ONE), **changes)),
    )


def make_stale_tree(volume: Path) -> None:
    """Put a whole tree of another generation in place."""
    store = open_store(volume.parent)
    tree = store.view(ONE).tree().with_generation(77)
    store.close()
    paths_of(volume).tree.write_bytes(encode_tree(tree, ONE))


def lose_tombstone(volume: Path) -> None:
    """Remove the tombstone from the index."""
    key = (1).to_bytes(8) + (3).to_bytes(8)
    in_index(volume, lambda rows: rows._txn.delete(key, db=rows._dbs.tombstones))


def make_lying_tree(volume: Path) -> None:
    """Put a tree in place whose root is not the fold of its blocks."""
    store = open_store(volume.parent)
    tree = bury(store.view(ONE).tree(), [])
    store.close()
    checksums = tree.block_checksums.copy()
    checksums[0] ^= 1
    lying = replace(tree, block_checksums=checksums)
    paths_of(volume).tree.write_bytes(encode_tree(lying, ONE))


PLANTED: dict[str, Callable[[Path], object]] = {
    "BLOCK_FILE_MISSING": lambda v: paths_of(v).block_file(BlockId(1)).unlink(),
    "BLOCK_FILE_SHORT": lambda v: truncate(paths_of(v).block_file(BlockId(1)), 15_000),
    "TRAILING_BYTES": lambda v: append(paths_of(v).block_file(BlockId(1))),
    "CHUNK_CHECKSUM": lambda v: flip_bit(paths_of(v).block_file(BlockId(1)), 12_000),
    "BLOCK_ROW_MISSING": lambda v: paths_of(v).block_file(BlockId(9)).write_bytes(b"orphan"),
    "BLOCK_ROW_DAMAGED": lambda v: in_index(
        v, lambda rows: rows.put_block(ONE, BlockId(1), b"rubbish!" * 20)
    ),
    "FOREIGN_FILE": lambda v: (paths_of(v).chunks / "notes.txt").write_bytes(b"x"),
    "DESCRIPTOR_MISSING": lambda v: paths_of(v).descriptor.unlink(),
    "DESCRIPTOR_DAMAGED": lambda v: truncate(paths_of(v).descriptor, 50),
    "DESCRIPTOR_STALE": lambda v: write_descriptor(
        paths_of(v).descriptor,
        replace(read_descriptor(paths_of(v).descriptor, ONE), state=ReplicaState.OPEN),
    ),
    "TREE_MISSING": lambda v: paths_of(v).tree.unlink(),
    "TREE_DAMAGED": lambda v: flip_bit(paths_of(v).tree, 80),
    "TREE_STALE": make_stale_tree,
    "TOMBSTONES_DIFFER": lose_tombstone,
    "CHUNKS_DIRECTORY_MISSING": lambda v: shutil.rmtree(paths_of(v).chunks),
    "REPLICA_ROW_DAMAGED": lambda v: in_index(
        v, lambda rows: rows._txn.put((1).to_bytes(8), b"rubbish", db=rows._dbs.replicas)
    ),
    "REPLICA_ROW_MISSING": lambda v: in_index(
        v, lambda rows: rows._txn.delete((1).to_bytes(8), db=rows._dbs.replicas)
    ),
    "COUNTS_DIFFER": lambda v: set_row(v, used_bytes=1),
    "DELETE_UNFINISHED": lambda v: set_row(v, state=ReplicaState.DELETED),
    "JOURNAL_NOT_EMPTY": lambda v: in_index(v, lambda rows: rows.begin_work(ONE, TreeEntry(9))),
    "TEMPORARY_LEFT": lambda v: (VolumeLayout(v, CLUSTER).importing / "5").mkdir(),
    "DIRECTORY_MISSING": lambda v: shutil.rmtree(VolumeLayout(v, CLUSTER).quarantine),
    "INDEX_UNREADABLE": lambda v: (VolumeLayout(v, CLUSTER).database / "data.mdb").write_bytes(
        b"no LMDB file" * 1000
    ),
    "PENDING_LEFT": lambda v: in_index(
        v, lambda rows: rows.put_pending(ONE, BlockId(9), chunk_of(content("x")))
    ),
    "TOMBSTONE_AND_ROW": lambda v: in_index(v, lambda rows: rows.put_tombstone(ONE, BlockId(1), 5)),
    "CHUNKS_NOT_CHAINED": lambda v: in_index(
        v,
        lambda rows: rows.put_pending(TWO, BlockId(1), chunk_of(content("y"), 2 * CHUNK_BYTES)),
    ),
}


def test_a_volume_in_order_has_no_problem(volume: Path) -> None:
    """This includes an open replica whose last write was cut off, because it was not
    acknowledged.
    """
    report = fsck(volume, read_data=True)

    assert () == report.problems
    assert (2, 2, 4, 1) == (
        report.replica_count,
        report.block_count,
        report.chunk_count,
        report.pending_chunk_count,
    )
    assert 5 * CHUNK_BYTES == report.bytes_read == report.bytes_recorded


@pytest.mark.parametrize("kind", PLANTED)
def test_every_kind_of_problem_is_seen(volume: Path, kind: str) -> None:
    """The first problem reported for a file has its kind and its path."""
    PLANTED[kind](volume)

    report = fsck(volume, read_data=True)

    found = {problem.kind: problem for problem in report.problems}
    assert kind in found, found
    assert found[kind].path.startswith(str(volume))
    assert found[kind].message


def test_a_tree_that_is_not_the_fold_of_its_children_is_damaged(volume: Path) -> None:
    """Its own checksum is right, and its content is wrong (I4)."""
    make_lying_tree(volume)

    assert "TREE_DAMAGED" in [problem.kind for problem in fsck(volume).problems]


def test_without_read_data_no_data_is_read(volume: Path) -> None:
    """
    The quick check is about metadata and sizes.
    """
    PLANTED["CHUNK_CHECKSUM"](volume)

    report = fsck(volume)

    assert ((), 0) == (report.problems, report.bytes_read)


def test_looking_changes_nothing(volume: Path) -> None:
    """
    Every file is byte for byte what it was; the lock was not even written to.
    """
    for kind in ("BLOCK_FILE_SHORT", "TREE_DAMAGED", "JOURNAL_NOT_EMPTY", "TEMPORARY_LEFT"):
        PLANTED[kind](volume)

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in volume.rglob("*") if path.is_file()}

    lock = VolumeLayout(volume, CLUSTER).lock
    lock.write_text("1\na process that was killed\n")
    before, written_at_ns = files(), lock.stat().st_mtime_ns
    fsck(volume, read_data=True)

    assert before == files()
    assert written_at_ns == lock.stat().st_mtime_ns


def test_a_volume_without_a_lock_file_gets_none(volume: Path) -> None:
    """No lock file is created in the copy of a disk."""
    lock = VolumeLayout(volume, CLUSTER).lock
    lock.unlink()

    assert () == fsck(volume).problems
    assert not lock.exists()


def test_a_read_only_mount_is_checked(volume: Path) -> None:
    """The mount is read-only, as the kernel leaves a failing disk and as an operator mounts a
    pulled one.
    """
    PLANTED["CHUNK_CHECKSUM"](volume)
    path = str(volume)
    bind = ["mount", "--bind", path, path]
    remount = ["mount", "-o", "remount,bind,ro", path]
    unmount = ["umount", "--lazy", path]
    if os.geteuid() or subprocess.run(bind, check=False).returncode:
        pytest.skip(reason="a directory can be mounted by root only")
    try:
        subprocess.run(remount, check=True)

        report = fsck(volume, read_data=True)
    finally:
        subprocess.run(unmount, check=True)

    assert ["CHUNK_CHECKSUM"] == [problem.kind for problem in report.problems]


def test_no_agent_starts_while_it_reads(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent would change the volume. The error names the running fsck."""
    refusals: list[RefusedError] = []

    def start(*_: object) -> None:
        with pytest.raises(RefusedError) as refusal:
            open_store(volume.parent)
        refusals.append(refusal.value)

    monkeypatch.setattr(fsck_module, "_check_directories", start)
    fsck(volume)

    assert [Code.VOLUME_IN_USE] == [refusal.code for refusal in refusals]
    assert "suture fsck" in str(refusals[0])


def test_the_report_is_json(volume: Path) -> None:
    """
    For `suture fsck --json`.
    """
    PLANTED["TREE_DAMAGED"](volume)

    report = json.loads(json.dumps(asdict(fsck(volume))))

    assert "TREE_DAMAGED" == report["problems"][0]["kind"]


def test_a_hopeless_volume_is_counted_to_the_end_and_listed_to_a_bound(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a million lines would be useless."""
    monkeypatch.setattr(fsck_module, "PROBLEMS_MAX", 3)
    for number in range(10):
        (paths_of(volume).chunks / f"foreign{number}").write_bytes(b"x")

    report = fsck(volume)

    assert (3, 10) == (len(report.problems), report.problem_count)


def test_fsck_refuses_a_directory_that_is_no_volume(tmp_path: Path) -> None:
    """The hint says which directory to name instead."""
    with pytest.raises(RefusedError, match="VERSION: No such file") as refusal:
        fsck(tmp_path)

    assert Code.INCONSISTENT_VOLUME is refusal.value.code
    assert "hdds/" in refusal.value.hint
