"""What a plan says of itself unless it says otherwise."""

from agent.plan.actions import Skip, SkipReason, WantedChunk
from merkle.replica import BlockId
from tests.support.storage.trees import good


def test_planned_chunk_is_not_ordered_and_skip_not_harmless_by_default() -> None:
    """The planner has to set both explicitly."""
    assert not WantedChunk(good(0, 1), "CORRUPT_CHUNK", ("dn2",)).is_ordered
    assert not Skip(BlockId(1), 0, SkipReason.HOLE).is_harmless
