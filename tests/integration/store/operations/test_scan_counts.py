"""What a scan makes right of a replica's counts, and that nobody waits for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.store.index.transactions import IndexChange, IndexView
from agent.store.operations import scans
from agent.store.replica import trees
from merkle.replica import BlockId, ContainerId
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stored_replica import CONTAINER, StoredReplica, opened


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """A closed replica of three blocks of which one row was lost, behind the store's back."""
    for one in opened(tmp_path):
        one.delete_row(2)
        yield one


def counts(replica: StoredReplica) -> tuple[int, int]:
    """Return what the replica's row counts."""
    facts = replica.store.replica(CONTAINER)
    return facts.block_count, facts.used_bytes


def test_rows_are_counted_while_others_may_write(
    replica: StoredReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 300,000 blocks the count takes seconds, and the volume must take writes meanwhile."""
    before = counts(replica)
    read_by: list[type[IndexView]] = []
    real = IndexView.blocks

    def noted(self: IndexView, container_id: ContainerId, start: int = 0) -> object:
        read_by.append(type(self))
        return real(self, container_id, start)

    monkeypatch.setattr(IndexView, "blocks", noted)
    assert replica.scan().committed

    left = sum(replica.store.view(CONTAINER).block(BlockId(n)).length_bytes for n in (1, 3))
    assert (3, (2, left)) == (before[0], counts(replica))
    assert read_by, "nothing was counted"
    assert IndexChange not in read_by


def test_counts_from_before_a_change_are_not_recorded(
    replica: StoredReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that is deleted in between is in no count, so the replica is read again."""
    late = [BlockId(3)]

    def commit(*arguments: Any, **named: Any) -> bool:
        remove_blocks(replica.store, CONTAINER, [late.pop()] if late else [])
        return trees.commit_tree(*arguments, **named)

    monkeypatch.setattr(scans, "commit_tree", commit)
    assert replica.scan().committed

    left = replica.store.view(CONTAINER).block(BlockId(1)).length_bytes
    assert ([], (1, left)) == (late, counts(replica))
