"""Long runs of the simulation: what becomes of a schedule that does not end."""

from threading import Event
from typing import Final

import pytest

from tools.simulation import __main__ as command
from tools.simulation.stage import Result

STUCK: Final = 3


def simulate(seed: int) -> Result:
    """Stand in for a schedule; one waits for what never comes."""
    if seed == STUCK:
        Event().wait()
    return Result(seed, step_count=seed)


def test_a_schedule_that_does_not_end_is_told_and_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The schedules before it count, its seed is reported as a violation, and no process is
    left.
    """
    monkeypatch.setattr("tools.simulation.schedule.simulate", simulate)
    monkeypatch.setattr(command, "HUNG_S", 0.5)

    results = list(command.lived(range(1, 9), jobs=2))

    assert [1, 2, STUCK] == [result.seed for result in results]
    assert [[], [], ["it has not ended after 0.5 s"]] == [one.violations for one in results]
