"""Trees on disk: never an older one over a newer, never an unreadable one for an empty one."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from agent.store.index.environment import Index
from agent.store.index.rows import moved_on
from agent.store.index.transactions import IndexChange
from agent.store.replica.handle import ReplicaHandle
from agent.store.replica.trees import commit_tree
from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockId, ContainerId, ReplicaState
from merkle.tree_codec import decode_tree, encode_tree
from scanner.finding import DamageFault, Verdict
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stores import (
    CHUNK_BYTES,
    closed_replica,
    commit_scan,
    damage,
    flip_bit,
    metadata_tree,
    options_of_test,
)

ONE = ContainerId(1)


def commit(store: ReplicaStore, *findings: object, generation: int | None = None) -> object:
    """Commit a complete scan that found these, on what is there now or then."""
    return commit_scan(
        store,
        ONE,
        base_generation=generation,
        tree=metadata_tree(store),
        findings=list(findings),  # type: ignore[arg-type]
        complete=True,
    )


class TestRead:
    """The tree that a peer gets."""

    @pytest.mark.parametrize("harm", ["remove", "truncate", "flip", "empty", "other container"])
    def test_an_unreadable_file_is_rebuilt_with_its_tombstones(
        self, store: ReplicaStore, harm: str
    ) -> None:
        """
        The index has every row and tombstone, so a lost tree file loses nothing.
        """
        closed_replica(store)
        remove_blocks(store, ONE, [BlockId(2)])
        before = store.view(ONE).tree()
        path = store.paths(ONE).tree
        match harm:
            case "remove":
                path.unlink()
            case "truncate":
                path.write_bytes(path.read_bytes()[:-9])
            case "flip":
                flip_bit(path, 70)
            case "empty":
                path.write_bytes(b"")
            case "other container":
                path.write_bytes(encode_tree(before, ContainerId(2)))

        after = store.view(ONE).tree()

        assert before.with_generation(after.generation) == after
        assert [False, True, False] == after.deleted.tolist()

    def test_a_stale_file_is_not_believed(self, store: ReplicaStore) -> None:
        """
        A whole tree of an older generation is still the wrong one.
        """
        closed_replica(store)
        old = store.paths(ONE).tree.read_bytes()
        remove_blocks(store, ONE, [BlockId(2)])
        store.paths(ONE).tree.write_bytes(old)

        assert [False, True, False] == store.view(ONE).tree().deleted.tolist()

    def test_a_file_from_the_future_is_not_believed(self, store: ReplicaStore) -> None:
        """A change that the index has not committed did not happen."""
        closed_replica(store)
        tree = store.view(ONE).tree()
        path = store.paths(ONE).tree
        path.write_bytes(encode_tree(tree.select([1]).with_generation(2), ONE))

        assert tree == store.view(ONE).tree()

    def test_a_rebuilt_tree_claims_no_more_than_the_scan_saw(self, store: ReplicaStore) -> None:
        """
        Chunks and blocks that findings call damaged are not in a tree that is made of metadata.
        """
        blocks = closed_replica(store)
        commit(
            store,
            damage(block_id=1, offset=CHUNK_BYTES),
            damage(block_id=3, fault=DamageFault.BLOCK_FILE_MISSING),
        )
        store.paths(ONE).tree.unlink()

        tree = store.view(ONE).tree()

        assert [1, 2] == tree.block_ids.tolist()
        assert [1, 2] == tree.chunk_counts.tolist()
        assert [0] == [leaf.offset for leaf in tree.leaves(1)]
        assert 3 == len(blocks)

    def test_reading_writes_nothing(self, store: ReplicaStore) -> None:
        """
        A damaged file is the scan's to report: serving a peer does not hide it.
        """
        closed_replica(store)
        store.paths(ONE).tree.unlink()

        store.view(ONE).tree()

        assert not store.paths(ONE).tree.exists()
        assert 1 == store.replica(ONE).tree.generation  # type: ignore[union-attr]


class TestCompareAndSet:
    """Scans, repairs and deletes in any order."""

    def test_a_scan_commits_on_the_generation_it_began_with(self, store: ReplicaStore) -> None:
        """
        The tree that a scan leaves is the next generation, on disk and in the report.
        """
        closed_replica(store)

        result = commit(store)

        assert result.committed  # type: ignore[attr-defined]
        stored = decode_tree(store.paths(ONE).tree.read_bytes(), ONE)
        assert 2 == stored.generation
        assert stored.summary() == store.replica(ONE).tree

    def test_a_scan_that_began_before_a_delete_changes_nothing(self, store: ReplicaStore) -> None:
        """
        The deleted block's data was still there when the scan read it; the tombstone stays.
        """
        closed_replica(store)
        before = metadata_tree(store)
        generation = store.begin_scan(ONE).generation
        remove_blocks(store, ONE, [BlockId(2)])
        file = store.paths(ONE).tree.read_bytes()

        result = commit_scan(
            store,
            ONE,
            base_generation=generation,
            tree=before,
            findings=[damage(block_id=2, offset=0)],
            complete=True,
        )

        assert not result.committed
        assert ReplicaState.CLOSED is result.state_after
        assert [] == store.findings(ONE)
        assert file == store.paths(ONE).tree.read_bytes()
        assert not store.paths(ONE).tree.with_suffix(".tree.tmp").exists()

    def test_a_tombstone_outlives_a_scan_that_does_not_know_it(self, store: ReplicaStore) -> None:
        """
        Tombstones are merged from the index, whatever tree a scan brings.
        """
        closed_replica(store)
        fresh = metadata_tree(store)
        remove_blocks(store, ONE, [BlockId(2)])
        generation = store.begin_scan(ONE).generation

        commit_scan(store, ONE, base_generation=generation, tree=fresh, findings=[], complete=True)

        assert [False, True, False] == store.view(ONE).tree().deleted.tolist()
        assert fresh.root == store.view(ONE).tree().root

    def test_repair_step_makes_a_running_scan_outdated(self, store: ReplicaStore) -> None:
        """The result of a scan is discarded if the data changed under it."""
        blocks = closed_replica(store)
        data = store.view(ONE).read(BlockId(1), 0, CHUNK_BYTES)
        flip_bit(store.paths(ONE).block_file(BlockId(1)), 17)
        generation = store.begin_scan(ONE).generation

        store.repair(ONE).install_chunk(BlockId(1), blocks[1].chunks[0], data)

        assert not commit(store, generation=generation).committed  # type: ignore[attr-defined]

    def test_a_change_between_intent_and_commit_wins(self, store: ReplicaStore) -> None:
        """
        The comparison that counts is the one in the transaction that puts the tree in place.
        """
        closed_replica(store)
        volume = store.volume_set.places[ONE]
        tree = store.view(ONE).tree()
        options = options_of_test()
        racing = replace(volume, index=RacingIndex(volume.index))  # type: ignore[arg-type]

        committed = commit_tree(
            ReplicaHandle(racing, options, ONE, options.on_trouble),
            tree.select([1]),
            base_generation=1,
            alter=lambda rows, row: row,  # noqa: ARG005
        )

        assert not committed
        assert tree == store.view(ONE).tree()
        with volume.index.read() as rows:
            assert [] == list(rows.journal())


class RacingIndex:
    """An index in which somebody else changes the replica after our first transaction."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._is_first = True

    def write(self, change: Callable[[IndexChange], bool]) -> bool:
        """Commit our change; after the first one, another of somebody else's."""
        result = self._index.write(change)
        if self._is_first:
            self._is_first = False
            self._index.write(lambda rows: rows.put_replica(ONE, moved_on(rows.replica(ONE))))
        return result


class TestVerdicts:
    """What findings make of a replica."""

    def test_damage_makes_it_unhealthy_and_is_kept(self, store: ReplicaStore) -> None:
        """
        State, findings and count change with the tree, in one commit.
        """
        closed_replica(store)
        found = damage(block_id=1, offset=0)

        result = commit(store, found)

        assert result.state_before is ReplicaState.CLOSED  # type: ignore[attr-defined]
        assert result.state_after is ReplicaState.UNHEALTHY  # type: ignore[attr-defined]
        assert [found] == store.findings(ONE) == store.findings()
        facts = store.replica(ONE)
        assert (1, ReplicaState.CLOSED) == (facts.finding_count, facts.former_state)

    def test_a_clean_full_read_heals(self, store: ReplicaStore) -> None:
        """
        UNHEALTHY ends with the former state, and the findings go.
        """
        closed_replica(store)
        commit(store, damage(block_id=1, offset=0))

        commit(store)

        facts = store.replica(ONE)
        assert (ReplicaState.CLOSED, None) == (facts.state, facts.former_state)
        assert (0, []) == (facts.finding_count, store.findings(ONE))

    @pytest.mark.parametrize("verdict", [Verdict.SUSPECT_HOST, Verdict.CHANGED, Verdict.TRANSIENT])
    def test_a_doubt_neither_condemns_nor_heals(
        self, store: ReplicaStore, verdict: Verdict
    ) -> None:
        """A finding that is not about the medium changes no state in either direction."""
        closed_replica(store)
        doubt = damage(block_id=1, offset=0, verdict=verdict)

        commit(store, doubt)
        healthy = store.replica(ONE).state
        commit(store, damage(block_id=1, offset=0))
        commit(store, doubt)

        assert ReplicaState.CLOSED is healthy
        assert ReplicaState.UNHEALTHY is store.replica(ONE).state

    def test_a_stopped_scan_adds_what_it_found_and_no_tree(self, store: ReplicaStore) -> None:
        """Unread blocks are not known to be whole or gone."""
        closed_replica(store)
        first = damage(block_id=1, offset=0)
        second = damage(block_id=2, offset=0)
        commit(store, first)
        before = store.replica(ONE)

        result = commit_scan(
            store,
            ONE,
            tree=store.view(ONE).tree().select([2]),
            findings=[second],
            complete=False,
        )

        assert result.committed
        assert [first, second] == store.findings(ONE)
        assert before.tree == store.replica(ONE).tree
        assert 2 == store.replica(ONE).finding_count

    def test_only_a_full_read_counts_as_one(self, store: ReplicaStore) -> None:
        """
        The age of the last verification is that of the last complete scan.
        """
        closed_replica(store)
        generation = store.begin_scan(ONE).generation
        tree = store.view(ONE).tree()

        commit_scan(store, ONE, base_generation=generation, tree=tree, findings=[], complete=False)
        stopped_at_ms = store.replica(ONE).data_scan_at_ms
        commit(store)

        assert 0 == stopped_at_ms
        assert 0 < store.replica(ONE).data_scan_at_ms

    def test_a_changed_root_is_said(self, store: ReplicaStore) -> None:
        """
        An incremental report is due when the root or the set of tombstones changed.
        """
        closed_replica(store)
        generation = store.begin_scan(ONE).generation
        other = metadata_tree(store).select([1])

        changed = commit_scan(
            store, ONE, base_generation=generation, tree=other, findings=[], complete=True
        )
        same = commit_scan(
            store,
            ONE,
            tree=other,
            findings=[],
            complete=True,
        )

        assert changed.root_changed
        assert not same.root_changed
