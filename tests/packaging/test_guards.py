"""The tool that takes guards out of the simulated product: it judges only what it could try."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.simulation.guards import SchedulesNotRun, Trial, guards

ROOT = Path(__file__).resolve().parents[2]


def test_a_promise_that_is_broken_without_a_guard_is_found() -> None:
    """A replica's generation goes back. The tool reports it, with the number of schedules."""
    ended = subprocess.run(
        [sys.executable, "-m", "tools.simulation", "guards", "--count", "5",
         "--only", "rows.py:moved_on", "--without", "row.generation - 1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )  # fmt: skip

    assert 0 == ended.returncode, ended.stderr
    assert ended.stdout.startswith("agent/store/index/rows.py:moved_on | 1 schedules, without ")
    assert "I5: " in ended.stdout


def test_schedules_that_cannot_be_lived_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Something that the simulation needs is not installed: it does not say that nothing was found.
    """
    monkeypatch.setitem(sys.modules, "tools.simulation.schedule", None)

    with pytest.raises(SchedulesNotRun, match=r"tools\.simulation\.schedule"):
        guards(["agent/reconcile/survey.py:_descend"], "", Trial(range(1, 2), 60.0), None)
