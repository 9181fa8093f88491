"""The read that closes a repair: of what was changed, where all was read lately; else of all."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.plan.reconcile_outcome import ReadBack, ReconcileVerdict
from agent.scan.repair_verification import verify_repair
from merkle.replica import BlockId, ReplicaState
from scanner.resume import Doubt
from tests.support.storage.datanodes import Datanode
from tests.support.storage.stored_replica import CHUNK_BYTES, CONTAINER, StoredReplica, noise

DAY_S = 86_400.0
BLOCK = BlockId(1)
REPAIRED: Doubt = (BLOCK, CHUNK_BYTES, CHUNK_BYTES + 1)
OLD_MS = 1_000


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """A replica of three blocks; the second chunk of block 1 was damaged, found and repaired."""
    made = StoredReplica(tmp_path / "volume")
    made.create()
    made.scan(CONTAINER)
    made.flip(1, CHUNK_BYTES + 5)
    assert 1 == made.scan(CONTAINER).finding_count
    repair(made)
    yield made
    made.close()


def repair(made: StoredReplica) -> None:
    """Install the damaged chunk again."""
    chunk = made.store.view(CONTAINER).block(BLOCK).chunks[1]
    data = noise(CHUNK_BYTES + 1, 1_000 + CHUNK_BYTES)
    made.store.repair(CONTAINER).install_chunk(BLOCK, chunk, data)


def proven(made: StoredReplica, age_max_s: float = DAY_S) -> ReadBack:
    """Close the repair."""
    return verify_repair(made.tools, CONTAINER, {REPAIRED}, age_max_s=age_max_s, stop=lambda: False)


def hidden(made: StoredReplica) -> None:
    """Damage a chunk that nobody has touched: only who reads all finds it."""
    made.flip(3, 5)


def is_found(made: StoredReplica) -> bool:
    """Whether the replica is known to be damaged."""
    return made.store.replica(CONTAINER).state is ReplicaState.UNHEALTHY


class TestChanged:
    """What was repaired is read, and no more."""

    def test_the_replica_is_what_a_whole_read_says_it_is(self, replica: StoredReplica) -> None:
        """State, findings, tree; but for when all was read last, which stays."""
        before = replica.store.replica(CONTAINER)

        proof = proven(replica)

        after, tree = replica.store.replica(CONTAINER), replica.store.view(CONTAINER).tree()
        replica.scan(CONTAINER)
        whole = replica.store.replica(CONTAINER)
        assert ReadBack.CHANGED is proof
        assert (ReplicaState.CLOSED, 0) == (after.state, after.finding_count)
        assert [] == replica.store.findings(CONTAINER)
        assert before.data_scan_at_ms == after.data_scan_at_ms < whole.data_scan_at_ms
        assert after.tree is not None
        assert whole.tree == replace(after.tree, generation=whole.tree.generation)  # type: ignore[union-attr]
        assert tree.root == replica.store.view(CONTAINER).tree().root
        assert 0 == len(tree.unhealthy_block_ids())

    def test_the_rest_is_left_to_the_next_scan(self, replica: StoredReplica) -> None:
        """Nothing of it is read: what is damaged there since is found at its slot."""
        hidden(replica)

        proof, was_found = proven(replica), is_found(replica)
        replica.scan(CONTAINER)

        assert (ReadBack.CHANGED, False, True) == (proof, was_found, is_found(replica))

    def test_a_finding_elsewhere_is_looked_at_again(self, tmp_path: Path) -> None:
        """Damage that has gone, by itself or by an earlier repair, is no finding any more."""
        made = StoredReplica(tmp_path / "volume")
        made.create()
        made.flip(1, CHUNK_BYTES + 5)
        made.flip(2, 5)
        made.scan(CONTAINER)
        made.flip(2, 5)
        repair(made)

        proof = proven(made)

        assert (ReadBack.CHANGED, False) == (proof, is_found(made))
        made.close()

    def test_proof_of_changed_blocks_survives_a_restart(self, replica: StoredReplica) -> None:
        """The proof is durable, and the next process finds the same state."""
        proven(replica)
        replica.close()
        replica.reopen()

        assert not is_found(replica)
        assert ReadBack.CHANGED is proven(replica)


class TestWhole:
    """All is read where what is known of the rest is too old, too little or not so."""

    @pytest.mark.parametrize("age_max_s", [0.0, 1e-9])
    def test_a_read_that_is_older_proves_nothing(
        self, replica: StoredReplica, age_max_s: float
    ) -> None:
        """With 0 all is always read."""
        hidden(replica)

        assert ReadBack.WHOLE is proven(replica, age_max_s)
        assert is_found(replica)

    @pytest.mark.parametrize("read_at_ms", [0, OLD_MS, 2**60], ids=["never", "old", "tomorrow"])
    def test_whole_proof_needs_a_recent_time_that_is_not_in_the_future(
        self, replica: StoredReplica, read_at_ms: int
    ) -> None:
        """A last read in the future does not count."""
        hidden(replica)
        index = replica.store.volume_set.places[CONTAINER].index

        def aged(rows) -> None:  # type: ignore[no-untyped-def]
            row = rows.replica(CONTAINER)
            rows.put_replica(CONTAINER, replace(row, data_scan_at_ms=read_at_ms))

        index.write(aged)

        assert ReadBack.WHOLE is proven(replica)
        assert is_found(replica)

    def test_a_read_that_failed_since_does(self, replica: StoredReplica) -> None:
        """A read error is unresolved, and its place is unknown."""
        hidden(replica)
        replica.store.begin_scan(CONTAINER).doubts.record_failure("EACCES")

        assert ReadBack.WHOLE is proven(replica)
        assert is_found(replica)

    @pytest.mark.parametrize(
        "change",
        [
            lambda made: made.delete_row(2),
            lambda made: made.rewrite(2),
            lambda made: made.rewrite(1),
            lambda made: made.store.paths(CONTAINER).tree.unlink(),
        ],
        ids=["row lost", "row changed", "row of another chunk changed", "tree lost"],
    )
    def test_rows_that_are_not_those_that_were_read_do(
        self, replica: StoredReplica, change: Callable[[StoredReplica], None]
    ) -> None:
        """This includes the row of a chunk beside the repaired one."""
        hidden(replica)
        change(replica)

        assert ReadBack.WHOLE is proven(replica)
        assert is_found(replica)

    def test_a_repair_that_did_not_last_does(self, replica: StoredReplica) -> None:
        """The new damage is found, and all other damage with it."""
        hidden(replica)
        replica.flip(1, CHUNK_BYTES + 9)

        assert ReadBack.WHOLE is proven(replica)
        assert {1, 3} == {finding.block_id for finding in replica.store.findings(CONTAINER)}

    def test_bytes_behind_a_repaired_block_do(self, replica: StoredReplica) -> None:
        """Its file is looked at, not its chunks alone."""
        path = replica.file(1)
        path.write_bytes(path.read_bytes() + b"garbage")

        assert ReadBack.WHOLE is proven(replica)
        assert is_found(replica)


class TestReconcile:
    """The outcome of a reconcile says which of both it was."""

    @pytest.mark.parametrize(("age_max_s", "expected"), [(DAY_S, "changed"), (0.0, "whole")])
    def test_reconcile_proves_exactly_the_blocks_it_changed(
        self, tmp_path: Path, age_max_s: float, expected: str
    ) -> None:
        """Blocks that the reconcile wrote, recorded or truncated are read."""
        mine, other = Datanode("dn1", tmp_path / "dn1"), Datanode("dn2", tmp_path / "dn2")
        seen: list[set[Doubt]] = []
        for one in (mine, other):
            one.replica.create(blocks=8)
        for block in (1, 2, 3):
            mine.replica.flip(block, 5)
        mine.replica.file(4).unlink()
        mine.replica.delete_row(5)
        path = mine.replica.file(6)
        path.write_bytes(path.read_bytes() + b"garbage")
        mine.scan()
        other.serve()

        def proving(container_id, changed) -> ReadBack:  # type: ignore[no-untyped-def]
            seen.append({place[0] for place in changed})
            tools = mine.replica.tools
            return verify_repair(
                tools, container_id, changed, age_max_s=age_max_s, stop=lambda: False
            )

        result = mine.reconcile([other], prove=proving)

        facts, files = mine.replica.store.replica(CONTAINER), (mine.files(), other.files())
        mine.close()
        other.close()
        assert (ReconcileVerdict.CONVERGED, expected) == (result.result, result.proof), result
        assert (ReplicaState.CLOSED, 0) == (facts.state, facts.finding_count)
        assert [{1, 2, 3, 4, 5, 6}] == seen
        assert files[0] == files[1]

    def test_reconcile_without_changes_reads_nothing(self, tmp_path: Path) -> None:
        """Equal replicas are left alone."""
        mine, other = Datanode("dn1", tmp_path / "dn1"), Datanode("dn2", tmp_path / "dn2")
        for one in (mine, other):
            one.replica.create()
        other.serve()

        result = mine.reconcile([other])

        mine.close()
        other.close()
        assert (ReconcileVerdict.NOTHING_TO_DO, ReadBack.NONE) == (result.result, result.proof)
