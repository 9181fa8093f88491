"""A volume that retires with replicas whose rows are lost: their bytes leave it, or it stays."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.store.index.transactions import IndexChange
from agent.store.volumes.service_mode import VolumeMode
from merkle.replica import BlockId, ContainerId, ReplicaState
from suture.errors import RefusedError
from tests.support.storage.two_volumes import BLOCKS, Host, content

ONE = ContainerId(1)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Two volumes with four containers."""
    with ThreadPoolExecutor(8) as executor:
        made = Host(tmp_path, executor)
        made.fill()
        yield made
        made.store.close()


def bytes_of(host: Host, container_id: int) -> list[bytes]:
    """Return what the block files of a container hold, where it is served."""
    paths = host.store.paths(ContainerId(container_id))
    return [paths.block_file(BlockId(n)).read_bytes() for n in range(1, BLOCKS + 1)]


def written(container_id: int) -> list[bytes]:
    """Return what was written to the blocks of a container."""
    return [content(container_id, block_id) for block_id in range(1, BLOCKS + 1)]


def found(host: Host, container_id: int) -> set[int]:
    """Return the blocks that findings of damage name."""
    findings = host.store.findings(ContainerId(container_id))
    return {one.block_id for one in findings if one.is_damage}


class TestRetire:
    def test_retiring_volume_moves_replicas_without_rows(self, host: Host) -> None:
        """The index of a volume is lost, the agent restarts, and the volume retires. The bytes
        are the only ones on this host, and they must not be reported as whole.
        """
        lost = host.on("a")
        host.lose_index("a")

        host.moves.set_mode(host.id_of("a"), VolumeMode.RETIRING)
        host.work()

        assert VolumeMode.RETIRED is host.store.services.of(host.id_of("a")).mode
        for number in lost:
            assert written(number) == bytes_of(host, number)
            assert ReplicaState.UNHEALTHY is host.store.replica(ContainerId(number)).state
            assert {1, 2, 3} == found(host, number)

    def test_retiring_volume_moves_blocks_without_rows(self, host: Host) -> None:
        """The rows of the replica and of one block are lost, and the others are whole."""
        name = "a" if ONE in host.on("a") else "b"
        lose_rows(host, ONE, BlockId(2))
        host.restart()

        host.moves.set_mode(host.id_of(name), VolumeMode.RETIRING)
        host.work()

        assert VolumeMode.RETIRED is host.store.services.of(host.id_of(name)).mode
        assert written(ONE) == bytes_of(host, ONE)
        assert ReplicaState.UNHEALTHY is host.store.replica(ONE).state
        assert {2} == found(host, ONE)


class TestDrop:
    @pytest.mark.parametrize("is_scanned", [False, True])
    def test_a_copy_that_knows_nothing_of_a_block_does_not_stand_in(
        self, host: Host, *, is_scanned: bool
    ) -> None:
        """The store itself checks every block of which the old replica has bytes."""
        [one, *_] = map(ContainerId, host.on("a"))
        lose_rows(host, one, BlockId(2), and_replica=not is_scanned)
        host.restart()
        if is_scanned:
            host.moves._verify(one)
        left = host.store.volume_set.places[one]
        host.store.services.change(host.id_of("a"), VolumeMode.RETIRING)
        copied_without(host, one, BlockId(2))

        with pytest.raises(RefusedError, match="no data of block 2"):
            host.store.services.drop_moved(host.id_of("a"), one)

        assert content(one, 2) == left.paths(one).block_file(BlockId(2)).read_bytes()

    def test_unread_original_is_not_dropped_for_a_damaged_copy(self, host: Host) -> None:
        """The original lost all its rows. Bytes that are damaged in the copy may be whole in the
        original.
        """
        [one, *_] = map(ContainerId, host.on("a"))
        host.lose_index("a")
        host.store.services.change(host.id_of("a"), VolumeMode.RETIRING)
        copied_without(host, one, None)
        file = host.store.paths(one).block_file(BlockId(2))
        file.write_bytes(bytes(file.stat().st_size))
        host.moves._verify(one)

        with pytest.raises(RefusedError, match="its copy is damaged"):
            host.store.services.drop_moved(host.id_of("a"), one)


def lose_rows(
    host: Host, container_id: ContainerId, block_id: BlockId, *, and_replica: bool = True
) -> None:
    """Remove the row of a block and that of its replica behind the store's back."""

    def change(rows: IndexChange) -> None:
        rows.delete_block(container_id, block_id)
        if and_replica:
            rows._txn.delete(container_id.to_bytes(8), db=rows._dbs.replicas)

    host.store.volume_set.places[container_id].index.write(change)


def copied_without(host: Host, container_id: ContainerId, block_id: BlockId | None) -> None:
    """Put a copy in the place of a replica which knows nothing of one block, and read it whole."""
    left = host.store.volume_set.places[container_id]
    target = next(one for one in host.store.volume_set.working if one is not left)
    del host.store.volume_set.places[container_id]
    host.store.services.change(left.volume_id, VolumeMode.READ_ONLY)
    host.write(container_id)
    assert host.store.volume_set.places[container_id] is target
    host.store.services.change(left.volume_id, VolumeMode.RETIRING)
    if block_id is None:
        return
    target.index.write(lambda rows: rows.delete_block(container_id, block_id))
    host.store.paths(container_id).block_file(block_id).unlink()
    host.store.paths(container_id).tree.unlink()
    host.moves._verify(container_id)
    target.index.write(lambda rows: rows.replace_findings(container_id, []))
