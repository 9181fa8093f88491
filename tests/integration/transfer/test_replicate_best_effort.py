"""The best copy may be damaged, or half repaired: it is copied all the same, and arrives marked."""

import os
from dataclasses import replace

import pytest

from merkle.replica import BlockId, ReplicaState
from merkle.tree_building import build_from_rows
from suture.errors import Code, SutureError, UnavailableError
from tests.support.storage.datanodes import Datanode
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.pushed import Pair, decoded, encoded
from tests.support.storage.stored_replica import CHUNK_BYTES, CONTAINER, noise

BLOCK = BlockId(2)


def half_repaired(node: Datanode) -> None:
    """Damage two chunks of block 2, find that, and repair the first: no scan has come by since."""
    replica = node.replica
    replica.flip(2, 5)
    replica.flip(2, CHUNK_BYTES + 5)
    node.scan()
    chunk = replica.store.view(CONTAINER).block(BLOCK).chunks[0]
    replica.store.repair(CONTAINER).install_chunk(BLOCK, chunk, noise(CHUNK_BYTES, 2_000))


def facts(node: Datanode) -> tuple[ReplicaState, set[tuple[int, int]]]:
    """Return state and damage of a replica."""
    store = node.replica.store
    found = {(item.block_id, item.offset) for item in store.findings(CONTAINER)}
    return store.replica(CONTAINER).state, found


def is_of_its_rows(node: Datanode) -> bool:
    """Whether the replica's root is what its own rows fold to."""
    store = node.replica.store
    tree = store.view(CONTAINER).tree()
    rows, buried = store.view(CONTAINER).block_rows(), store.view(CONTAINER).tombstones()
    return tree.root == build_from_rows(rows, buried, algorithm=tree.algorithm).root


class TestUnderRepair:
    def test_a_half_repaired_replica_arrives_with_what_is_left(self, pair: Pair) -> None:
        """Its rows are newer than its tree: the chunk that is right is taken for right."""
        pair.source.replica.create()
        half_repaired(pair.source)

        outcome = pair.source.replicate(pair.target)

        assert ("imported", 1) == (outcome.result, outcome.damaged_chunk_count)
        assert (ReplicaState.UNHEALTHY, {(2, CHUNK_BYTES)}) == facts(pair.target)
        assert pair.source.files() == pair.target.files()
        pair.target.scan()
        assert (ReplicaState.UNHEALTHY, {(2, CHUNK_BYTES)}) == facts(pair.target)

    def test_a_replica_that_is_caught_up_arrives_as_it_is(self, pair: Pair) -> None:
        """QUASI_CLOSED, with the block that came, and no commit id that it has not."""
        replica = pair.source.replica
        replica.create()
        lost = replica.store.view(CONTAINER).block(BlockId(3))
        whole = replica.file(3).read_bytes()
        replica.store.delete_container(CONTAINER, force=True)
        replica.store.create_container(CONTAINER)
        for number in (1, 2):
            replica.put(number, CHUNK_BYTES, CHUNK_BYTES + number)
        replica.store.close_container(CONTAINER, bcsid=3)
        for chunk in lost.chunks:
            data = whole[chunk.offset : chunk.end]
            replica.store.repair(CONTAINER).install_chunk(BlockId(3), chunk, data)
        assert ReplicaState.QUASI_CLOSED is replica.store.replica(CONTAINER).state

        pair.source.replicate(pair.target)

        assert (ReplicaState.QUASI_CLOSED, set()) == facts(pair.target)
        assert pair.source.files() == pair.target.files()
        assert is_of_its_rows(pair.target)
        assert 2 == pair.target.replica.store.replica(CONTAINER).bcsid
        assert [CONTAINER] == pair.target.on_demand

    def test_a_deleted_block_arrives_deleted_though_it_was_damaged(self, pair: Pair) -> None:
        """Its findings no longer count, and no file arrives for it."""
        replica = pair.source.replica
        replica.create()
        replica.flip(2, 5)
        replica.flip(3, 5)
        pair.source.scan()
        remove_blocks(replica.store, CONTAINER, [BLOCK])

        pair.source.replicate(pair.target)

        assert (ReplicaState.UNHEALTHY, {(3, 0)}) == facts(pair.target)
        assert {BLOCK} == set(pair.target.replica.store.view(CONTAINER).tombstones())
        assert not pair.target.replica.file(2).exists()

    def test_the_first_stream_of_it_is_taken(self, pair: Pair) -> None:
        """The source is not scanned again for it."""
        pair.source.replica.create()
        half_repaired(pair.source)

        pair.target.importer.receive(encoded(list(decoded(pair.source))))

        assert (ReplicaState.UNHEALTHY, {(2, CHUNK_BYTES)}) == facts(pair.target)


class TestUndeclared:
    @pytest.mark.parametrize("harm", ["flipped", "short", "missing", "row"])
    def test_damage_that_nobody_knew_of_arrives_marked(self, pair: Pair, harm: str) -> None:
        """The source reads itself, and sends again with what it found."""
        replica = pair.source.replica
        replica.create()
        match harm:
            case "flipped":
                replica.flip(2, 5)
            case "short":
                os.truncate(replica.file(2), 5)
            case "missing":
                replica.file(2).unlink()
            case "row":
                replica.damage_row(2)

        outcome = pair.source.replicate(pair.target)

        assert outcome.damaged_chunk_count >= 1
        state, found = facts(pair.target)
        assert ReplicaState.UNHEALTHY is state
        assert {2} == {block_id for block_id, _ in found}
        assert ReplicaState.UNHEALTHY is pair.source.replica.store.replica(CONTAINER).state
        assert pair.source.files() == pair.target.files()
        assert [CONTAINER] == pair.target.on_demand
        pair.target.scan()
        assert ReplicaState.UNHEALTHY is facts(pair.target)[0]

    def test_a_source_whose_rows_were_changed_sends_nothing_unseen(self, pair: Pair) -> None:
        """
        Its bytes fit its rows, and both are not what was written: the copy fails once, and the
        root that gives it away is reported before another one is ordered.
        """
        replica = pair.source.replica
        replica.create()
        root = replica.store.view(CONTAINER).tree().root
        replica.rewrite(2)

        with pytest.raises(SutureError) as caught:
            pair.source.replicate(pair.target)

        found = replica.store.replica(CONTAINER)
        assert Code.CHECKSUM_MISMATCH is caught.value.code
        assert (ReplicaState.CLOSED, 0) == (found.state, found.finding_count)
        assert found.tree is not None
        assert root != found.tree.root
        pair.target_is_untouched()

    def test_source_that_cannot_scan_itself_sends_nothing(self, pair: Pair) -> None:
        """A replica without a verdict is not sent as good."""
        pair.source.replica.create()
        pair.source.replica.flip(2, 5)

        def busy(_container_id: int) -> bool:
            raise UnavailableError(Code.BUSY, "another time")

        replicator = replace(pair.source.replicator(), scan=busy)
        with pytest.raises(SutureError) as caught:
            pair.source.replicate(pair.target, replicator=replicator)

        assert Code.CHECKSUM_MISMATCH is caught.value.code
        assert [CONTAINER] == pair.source.on_demand
        pair.target_is_untouched()


class TestCommitId:
    """Two replicas with the same tree, of which one has the lower commit id."""

    @pytest.fixture
    def behind(self, pair: Pair) -> Pair:
        """The source has all of the target's blocks, and closed QUASI_CLOSED."""
        for node in (pair.source, pair.target):
            replica = node.replica
            replica.store.create_container(CONTAINER)
            for number in (1, 2, 3):
                replica.put(number, CHUNK_BYTES)
        pair.source.replica.store.close_container(CONTAINER, bcsid=50)
        pair.target.replica.store.close_container(CONTAINER, bcsid=0, force=True)
        pair.target.replica.store.repair(CONTAINER).advance_bcsid(50)
        return pair

    def test_commit_id_is_taken_over_and_the_replica_closes(self, behind: Pair) -> None:
        """No block that the commit id covers is missing."""
        store = behind.source.replica.store
        changes: list[int] = []
        store.on_change = changes.append

        behind.source.reconcile([behind.target])

        assert 50 == store.replica(CONTAINER).bcsid
        assert CONTAINER in changes
        assert ReplicaState.CLOSED is store.close_container(CONTAINER, bcsid=50).state

    def test_no_id_is_taken_from_a_replica_that_is_not_healthy(self, behind: Pair) -> None:
        """Its word about itself is what is in doubt."""
        behind.target.replica.store.paths(CONTAINER).descriptor.unlink()
        behind.target.scan()
        state = behind.target.replica.store.replica(CONTAINER).state
        assert ReplicaState.UNHEALTHY is state

        behind.source.reconcile([behind.target])

        assert 3 == behind.source.replica.store.replica(CONTAINER).bcsid

    def test_no_id_is_taken_where_a_block_is_missing(self, behind: Pair) -> None:
        """A tombstone that only the peer has is a difference, too."""
        remove_blocks(behind.target.replica.store, CONTAINER, [BLOCK])

        behind.source.reconcile([behind.target])

        assert 3 == behind.source.replica.store.replica(CONTAINER).bcsid
