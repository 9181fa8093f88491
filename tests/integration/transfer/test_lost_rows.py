"""A replica of which rows are lost is copied with every byte, and says so of each block."""

import pytest

from merkle.replica import BlockId, ReplicaState
from scanner.finding_collector import FINDINGS_PER_REPLICA_MAX
from suture.errors import Code
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.storage.datanodes import Datanode
from tests.support.storage.pushed import MIB, Pair, decoded, exported, refused
from tests.support.storage.stored_replica import CONTAINER


def found(node: Datanode) -> tuple[ReplicaState, set[int]]:
    """Return the state of a replica, and the blocks that findings of damage name."""
    store = node.replica.store
    damage = {item.block_id for item in store.findings(CONTAINER) if item.is_damage}
    return store.replica(CONTAINER).state, damage


class TestLostIndex:
    @pytest.mark.parametrize("is_scanned", [False, True])
    def test_the_copy_has_every_byte_and_says_what_it_lacks(
        self, pair: Pair, *, is_scanned: bool
    ) -> None:
        """A decommission relies on the copy. A clean copy without the bytes would lose them."""
        pair.source.replica.create()
        pair.source.replica.lose_index()
        if is_scanned:
            pair.source.scan()

        outcome = pair.source.replicate(pair.target)

        assert ("imported", 3) == (outcome.result, outcome.damaged_chunk_count)
        assert pair.source.files() == pair.target.files()
        assert (ReplicaState.UNHEALTHY, {1, 2, 3}) == found(pair.target)
        pair.target.scan()
        assert (ReplicaState.UNHEALTHY, {1, 2, 3}) == found(pair.target)

    def test_replica_without_rows_above_a_mebibyte_is_copied(self, pair: Pair) -> None:
        """Room is reserved for bytes that no row counts. Otherwise such a replica could never
        leave its datanode.
        """
        replica = pair.source.replica
        replica.store.create_container(CONTAINER)
        for number in range(1, 4):
            replica.put(number, MIB)
        replica.store.close_container(CONTAINER, bcsid=0, force=True)
        replica.lose_index()

        pair.source.replicate(pair.target)

        assert pair.source.files() == pair.target.files()

    def test_replica_without_rows_is_not_sent_before_a_scan(self, pair: Pair) -> None:
        """Before the scan only the blocks with rows would be sent, and the target could not
        notice.
        """
        pair.source.replica.create()
        pair.source.replica.lose_index()
        export = exported(pair.source)

        assert [] == list(export.stream())
        assert export.failure is not None
        assert Code.CHECKSUM_MISMATCH is export.failure.code

    def test_a_source_that_cannot_say_which_is_not_taken_from(self, pair: Pair) -> None:
        """A source of an earlier version sends only the blocks with rows, and the copy would
        pass for whole.
        """
        pair.source.replica.create()
        parts = list(decoded(pair.source))
        lost = pb.Finding(verdict="CORRUPT", fault="BLOCK_ROW_MISSING", local_id=-1, offset=-1)
        told = pb.ImportPart(findings=pb.ImportFindings(findings=[lost]))
        at = next(index for index, part in enumerate(parts) if part.HasField("blocks"))

        code = refused(pair, [*parts[:at], told, *parts[at:]])

        assert Code.CHECKSUM_MISMATCH.value == code
        pair.target_is_untouched()


class TestLostTree:
    @pytest.mark.parametrize("is_open", [False, True])
    def test_a_scan_says_of_each_file_that_its_row_is_lost(
        self, pair: Pair, *, is_open: bool
    ) -> None:
        """Without rows, the set of blocks is unknown. The replica is neither clean nor empty,
        because its files may be acknowledged data.
        """
        replica = pair.source.replica
        replica.create()
        if is_open:
            replica.store.delete_container(CONTAINER, force=True)
            replica.store.create_container(CONTAINER)
            for number in range(1, 4):
                replica.put(number, 1000)
        else:
            replica.store.paths(CONTAINER).tree.unlink()
        replica.lose_index()

        pair.source.scan()
        pair.source.scan()

        assert (ReplicaState.UNHEALTHY, {1, 2, 3}) == found(pair.source)
        assert not replica.store.replica(CONTAINER).is_empty


class TestMany:
    """More blocks lost their rows than a scan keeps findings."""

    COUNT = FINDINGS_PER_REPLICA_MAX + 5

    @pytest.fixture
    def rows(self, pair: Pair) -> list[tuple[BlockId, bytes]]:
        """The rows that the source had before its index was lost; it was scanned since."""
        replica = pair.source.replica
        replica.store.create_container(CONTAINER)
        for number in range(1, self.COUNT + 1):
            replica.put(number, 10)
        replica.store.close_container(CONTAINER, bcsid=0, force=True)
        rows = list(replica.store.view(CONTAINER).block_rows())
        replica.lose_index()
        pair.source.scan()
        return rows

    def test_blocks_without_rows_beyond_the_findings_are_copied(
        self, pair: Pair, rows: list[object]
    ) -> None:
        """The blocks that no finding names are copied and declared, too."""
        outcome = pair.source.replicate(pair.target)

        assert ("imported", len(rows)) == (outcome.result, outcome.damaged_chunk_count)
        assert pair.source.files() == pair.target.files()
        pair.target.scan()
        assert ReplicaState.UNHEALTHY is found(pair.target)[0]
        assert len(rows) == len(pair.target.replica.store.view(CONTAINER).blocks_without_row())

    def test_blocks_without_rows_beyond_the_findings_are_found_later(
        self, pair: Pair, rows: list[tuple[BlockId, bytes]]
    ) -> None:
        """The blocks that were named have rows again, which does not make the replica whole."""
        store = pair.source.replica.store
        named = found(pair.source)[1]
        again = [(block_id, row) for block_id, row in rows if block_id in named]
        index = store.volume_set.places[CONTAINER].index
        index.write(lambda changed: changed.put_blocks(CONTAINER, again))

        pair.source.scan()

        left = {block_id for block_id, _ in rows} - named
        assert (ReplicaState.UNHEALTHY, left) == found(pair.source)
        assert len(left) == self.COUNT - FINDINGS_PER_REPLICA_MAX
