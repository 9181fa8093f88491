"""What a plan says of itself unless it says otherwise."""

from agent.plan.actions import Skip, SkipReason, WantedChunk
from merkle.replica import BlockId
from tests.support.storage.trees import good


def test_nobody_ordered_what_a_plan_wants_unless_it_says_so() -> None:
    """
    Nor is anything harmless that is left alone.
    """
    assert not WantedChunk(good(0, 1), "CORRUPT_CHUNK", ("dn2",)).is_ordered
    assert not Skip(BlockId(1), 0, SkipReason.HOLE).is_harmless
