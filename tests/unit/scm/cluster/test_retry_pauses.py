"""Commands that fail again and again are ordered less and less often."""

import pytest

from scm.cluster.commands.retry_pauses import RECONSTRUCT_FIRST_S, RetryPauses
from scm.state.clock import ScmClock
from scm.state.entities import CommandKind, OutcomeState
from tests.support.clock import FakeClock
from tests.support.control.scm_world import outcome, pending

CONTAINER = 7


def tried(kind: CommandKind, *, pause_s: float, count: int) -> list[float]:
    """Fail so often, each time as soon as may be and once a second is over; return the pauses."""
    clock = FakeClock()
    pauses = RetryPauses(ScmClock(clock.now_ms, clock.monotonic_s), first_s=pause_s)
    command = pending(1, kind, container_id=CONTAINER)
    waited = []
    for _ in range(count):
        pauses.record_outcome(command, outcome(command, OutcomeState.FAILED))
        began_s = clock.monotonic_s()
        while pauses.is_cooling(kind, CONTAINER, ""):
            clock.advance_s(1)
            pauses.forget_old()
        waited.append(clock.monotonic_s() - began_s)
        for _ in range(12):  # until it is looked at again
            clock.advance_s(1)
            pauses.forget_old()
    return waited


@pytest.mark.parametrize(
    ("kind", "first_s"),
    [(CommandKind.REPLICATE, 1.0), (CommandKind.RECONSTRUCT, RECONSTRUCT_FIRST_S)],
)
def test_pauses_double_although_each_try_comes_long_after_the_pause(
    kind: CommandKind, first_s: float
) -> None:
    """
    A reconstruction is ordered ten seconds after another at the earliest: the first failures, whose
    pauses are shorter, are remembered until then.
    """
    found = tried(kind, pause_s=1.0, count=9)

    assert [first_s * n for n in (1, 2, 4, 8, 16, 32, 64, 64, 64)] == found


def test_a_success_ends_the_row() -> None:
    """
    The next failure is the first again.
    """
    clock = FakeClock()
    pauses = RetryPauses(ScmClock(clock.now_ms, clock.monotonic_s), first_s=1.0)
    command = pending(1, CommandKind.REPLICATE, container_id=CONTAINER)
    for state in (OutcomeState.FAILED, OutcomeState.FAILED, OutcomeState.EXECUTED):
        pauses.record_outcome(command, outcome(command, state))

    is_cooling = pauses.is_cooling(CommandKind.REPLICATE, CONTAINER, "")
    pauses.record_outcome(command, outcome(command, OutcomeState.FAILED))
    clock.advance_s(1)

    assert not is_cooling
    assert not pauses.is_cooling(CommandKind.REPLICATE, CONTAINER, "")
