"""A full disk, no more file descriptors, a file size limit: refused, nothing changed, and over
when it is over."""

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.store.index.rows import DescriptorEntry
from agent.store.recovery.fsck import fsck
from agent.store.replica_store import ReplicaStore
from merkle.replica import Bcsid, BlockData, BlockId, ContainerId
from scanner.finding import DamageFault
from suture.errors import Code, SutureError, UnavailableError
from tests.support.faults.small_disk import DISK_BYTES, SmallDisk, small_disk
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stores import (
    chunk_of,
    closed_replica,
    commit_scan,
    content,
    damage,
    open_store,
    write_block,
)

pytestmark = pytest.mark.fault

ONE = ContainerId(1)
CHUNK_BYTES = 60_000
LOCK_BYTES = 4096  # of in_use.lock, whose page a start takes first


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 3 MiB."""
    with small_disk(tmp_path / "disk") as made:
        yield made


def write(store: ReplicaStore, block_id: int) -> None:
    """Write and commit a block of one chunk."""
    data = content(block_id, CHUNK_BYTES)
    chunk = chunk_of(data)
    block = BlockData(BlockId(block_id), Bcsid(block_id), (chunk,))
    store.writer(ONE).write_chunk(BlockId(block_id), chunk, data, commit=block)


def state_of(store: ReplicaStore) -> object:
    """Everything that a refused request must not change."""
    files = {path.name: path.stat().st_size for path in store.paths(ONE).chunks.iterdir()}
    return store.replica(ONE), store.view(ONE).blocks(), files


def test_full_disk_refuses_writes_and_keeps_acknowledged_data(disk: SmallDisk) -> None:
    """Writing ends with DISK_OUT_OF_SPACE. The refused chunk leaves no file, and writing resumes
    when there is space.
    """
    store = open_store(disk.path)
    store.create_container(ONE)
    written = 0
    refusal: SutureError | None = None
    while refusal is None:
        before = state_of(store)
        try:
            write(store, written + 1)
            written += 1
        except UnavailableError as error:
            refusal = error

    assert Code.DISK_OUT_OF_SPACE is refusal.code
    assert before == state_of(store)
    assert 10 < written < DISK_BYTES // CHUNK_BYTES
    for block_id in range(1, written + 1):
        assert content(block_id, CHUNK_BYTES) == store.view(ONE).read(
            BlockId(block_id), 0, CHUNK_BYTES
        )

    remount = ["mount", "-o", f"remount,size={2 * DISK_BYTES}", str(disk.path)]
    subprocess.run(remount, check=True)
    write(store, written + 1)
    store.close()
    assert () == fsck(disk.path / "v0", read_data=True).problems


def test_an_index_without_room_refuses_the_chunk_whose_bytes_had_room(disk: SmallDisk) -> None:
    """
    LMDB reports a full disk as an I/O error; the volume is not failed for it.
    """
    store = open_store(disk.path)
    store.create_container(ONE)
    write(store, 1)
    path = store.paths(ONE).block_file(BlockId(2))
    disk.fill(leave_bytes=64 * 1024)
    before = state_of(store)

    codes = set()
    for _ in range(3):
        with pytest.raises(UnavailableError) as refusal:
            write(store, 2)
        codes.add(refusal.value.code)

    assert {Code.DISK_OUT_OF_SPACE} == codes
    assert before == state_of(store)
    assert not path.exists()
    disk.free()
    write(store, 2)
    store.close()
    assert () == fsck(disk.path / "v0", read_data=True).problems


@pytest.mark.parametrize("leave_bytes", [0, 4096, 8192, 16_384, 32_768, 65_536])
def test_full_disk_fails_or_completes_each_operation_as_a_whole(
    disk: SmallDisk, leave_bytes: int
) -> None:
    """Create, close, scan, repair and delete fail or succeed as a whole, wherever the disk ends."""
    store = open_store(disk.path)
    blocks = closed_replica(store)
    store.create_container(ContainerId(2))
    path = store.paths(ONE).block_file(BlockId(2))
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\x00\xff" + whole[102:])
    disk.fill(leave_bytes=leave_bytes)

    codes = []
    for request in (
        lambda: store.create_container(ContainerId(3)),
        lambda: store.close_container(ContainerId(2)),
        lambda: store.repair(ONE).install_chunk(
            BlockId(2), blocks[2].chunks[0], whole[: blocks[2].chunks[0].length_bytes]
        ),
        lambda: commit_scan(
            store,
            ONE,
            tree=store.view(ONE).tree(),
            findings=[damage(1, 3, 0, fault=DamageFault.CHUNK_CHECKSUM)],
            complete=True,
        ),
        lambda: remove_blocks(store, ONE, [BlockId(1)]),
    ):
        try:
            request()
        except UnavailableError as error:
            codes.append(error.code)

    assert codes or leave_bytes
    assert {Code.DISK_OUT_OF_SPACE} >= set(codes)
    disk.free()
    store.close()
    store = open_store(disk.path)
    assert () == store.unloadable()
    assert content((2, 1)) == store.view(ONE).read(BlockId(2), 10_000, 10_000)
    store.close()
    found = fsck(disk.path / "v0", read_data=True).problems
    assert [] == [problem for problem in found if problem.kind != "CHUNK_CHECKSUM"]
    assert {str(path)} >= {problem.path for problem in found}


@pytest.mark.parametrize("is_of_inodes", [False, True])
def test_a_full_disk_can_be_emptied(tmp_path: Path, is_of_inodes: bool) -> None:
    """
    Another program has filled it, to the last byte or the last inode: blocks and replicas are
    deleted with the room that is kept for that, also after a restart. Once there is room it is
    kept again.
    """
    with small_disk(tmp_path / "disk", inode_count=300) as disk:
        store = open_store(disk.path)
        blocks = closed_replica(store, block_ids=range(1, 20))
        closed_replica(store, 2)
        store.close()
        fill = disk.take_inodes if is_of_inodes else disk.fill
        fill()

        store = open_store(disk.path)
        assert () == store.unloadable()
        assert not [facts for facts in store.volumes() if facts.failed]
        fill()
        for block_id in blocks:
            remove_blocks(store, ONE, [BlockId(block_id)])
        fill()
        store.delete_container(ContainerId(2), force=True)
        store.delete_container(ONE, force=True)

        assert [] == store.replica_ids()
        disk.free()
        store.volume_set.purge_deleted({})
        assert 8 == len(list(disk.path.glob("v0/hdds/*/ballast/*")))
        store.close()
        assert () == fsck(disk.path / "v0", read_data=True).problems


@pytest.mark.parametrize("is_of_inodes", [False, True])
def test_start_on_a_full_disk_finishes_what_was_begun(tmp_path: Path, is_of_inodes: bool) -> None:
    """
    Another program filled the disk while the agent was down in the middle of an operation. The
    recovery uses the room that is kept; the volume is served, and not called failed.
    """
    with small_disk(tmp_path / "disk", inode_count=300) as disk:
        store = open_store(disk.path)
        closed_replica(store, block_ids=range(1, 20))
        closed_replica(store, 2)
        for container_id in (ONE, ContainerId(2)):
            index = store.volume_set.places[container_id].index
            index.write(lambda rows, it=container_id: rows.begin_work(it, DescriptorEntry()))
            store.paths(container_id).descriptor.unlink()
        store.close()
        (disk.take_inodes if is_of_inodes else disk.fill)()

        store = open_store(disk.path)

        assert not [facts for facts in store.volumes() if facts.failed]
        assert ["descriptor rewritten"] * 2 == [step.what for step in store.recovery.steps]
        assert [ONE, ContainerId(2)] == list(store.replica_ids())
        store.close()


@pytest.mark.parametrize("has_row", [True, False])
def test_replica_that_a_full_disk_cannot_load_fails_no_volume(
    tmp_path: Path, has_row: bool
) -> None:
    """The disk is full and the ballast is gone. The replica is reported as not served, the
    others are served, and the next start with room loads it.
    """
    with small_disk(tmp_path / "disk", inode_count=300) as disk:
        store = open_store(disk.path)
        closed_replica(store, block_ids=range(1, 20))
        closed_replica(store, 2)
        if has_row:  # the directory is lost, and the row has to say so
            shutil.rmtree(store.paths(ONE).root)
        else:  # the row is lost, and has to be made again
            index = store.volume_set.places[ONE].index
            index.write(lambda rows: rows._txn.delete(ONE.to_bytes(8), db=rows._dbs.replicas))
        store.close()
        for path in disk.path.glob("v0/hdds/*/ballast/*"):
            path.unlink()
        disk.fill(leave_bytes=LOCK_BYTES)

        store = open_store(disk.path)
        failed = [facts for facts in store.volumes() if facts.failed]
        unloadable = [item.container_id for item in store.unloadable()]
        served = len(store.view(ContainerId(2)).read(BlockId(1), 0, 100))
        store.close()
        disk.free()
        store = open_store(disk.path)
        later = list(store.replica_ids())
        store.close()

    assert [] == failed
    assert [ONE] == unloadable
    assert 100 == served
    assert [ONE, ContainerId(2)] == later


def test_replicas_that_a_full_disk_cannot_load_together_are_loaded_one_by_one(
    tmp_path: Path,
) -> None:
    """The descriptors of all need more room than there is, the descriptor of one does not."""
    ids = [ContainerId(number) for number in range(1, 31)]
    with small_disk(tmp_path / "disk", inode_count=600) as disk:
        store = open_store(disk.path)
        for container_id in ids:
            store.create_container(container_id)
            store.close_container(container_id, force=True)
        index = store.volume_set.places[ONE].index
        for container_id in ids:
            key = container_id.to_bytes(8)
            index.write(lambda rows, key=key: rows._txn.delete(key, db=rows._dbs.replicas))
        store.close()
        for path in disk.path.glob("v0/hdds/*/ballast/*"):
            path.unlink()
        disk.fill(leave_bytes=LOCK_BYTES + 16 * 4096)

        store = open_store(disk.path)
        served, unloadable = list(store.replica_ids()), store.unloadable()
        store.close()

    assert ids == served
    assert () == unloadable


@contextmanager
def limited(name: int, value: int) -> Iterator[None]:
    """Lower a resource limit of this process for the length of the body."""
    soft, hard = resource.getrlimit(name)
    resource.setrlimit(name, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(name, (soft, hard))


def test_a_file_size_limit_is_a_full_disk(tmp_path: Path) -> None:
    """
    A block file at its limit is refused like any other lack of space.
    """
    store = open_store(tmp_path)
    store.create_container(ONE)
    write(store, 1)
    before = state_of(store)

    with (
        limited(resource.RLIMIT_FSIZE, CHUNK_BYTES // 2),
        pytest.raises(UnavailableError) as refusal,
    ):
        write(store, 2)

    assert Code.DISK_OUT_OF_SPACE is refusal.value.code
    assert before == state_of(store)
    write(store, 2)
    store.close()


def test_a_repair_that_fails_outdates_a_running_scan(tmp_path: Path) -> None:
    """
    The scan may have read half of what was then taken back.
    """
    store = open_store(tmp_path)
    store.create_container(ONE)
    block = write_block(store, 1, 2, chunk_bytes=1_000_000)
    store.close_container(ONE)
    path = store.paths(ONE).block_file(BlockId(2))
    whole = path.read_bytes()
    path.write_bytes(whole[:1_500_000])
    base = store.begin_scan(ONE)

    # Above the index's size, within the chunk: only the chunk's own write is cut off.
    with limited(resource.RLIMIT_FSIZE, 1_800_000), pytest.raises(UnavailableError):
        store.repair(ONE).install_chunk(BlockId(2), block.chunks[1], whole[1_000_000:])

    assert whole[:1_500_000] == path.read_bytes()
    assert base.generation < store.generation(ONE)
    store.close()


def test_no_file_descriptor_says_nothing_about_the_data(tmp_path: Path) -> None:
    """
    EMFILE is BUSY: no volume is failed, nothing is changed, and it passes.
    """
    store = open_store(tmp_path)
    store.create_container(ONE)
    write(store, 1)
    before = state_of(store)
    lowest = os.dup(0)
    os.close(lowest)

    with limited(resource.RLIMIT_NOFILE, lowest):
        for request in (
            lambda: store.view(ONE).read(BlockId(1), 0, 10),
            lambda: write(store, 2),
            lambda: store.close_container(ONE),
        ):
            with pytest.raises(UnavailableError) as refusal:
                request()
            assert Code.BUSY is refusal.value.code

    # The close had begun: its first step needs no descriptor, and it is repeated to its end.
    assert before[1:] == state_of(store)[1:]  # type: ignore[index]
    store.close_container(ONE)
    store.close()
    assert () == fsck(tmp_path / "v0", read_data=True).problems
