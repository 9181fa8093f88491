"""An older state of the control plane deletes nothing that was acknowledged."""

import random
from pathlib import Path

import pytest

from bench.reliability.older_drill import OlderDrill
from tests.support.nursery import forked

pytestmark = [pytest.mark.fault, pytest.mark.slow]


def test_restored_or_forked_older_state_deletes_no_acknowledged_data(tmp_path: Path) -> None:
    """An older state is restored under writers, and two control planes run on copies of one state,
    with real processes and at random moments. The full bench is `make bench NAME=older`.
    """
    seed = random.randrange(1_000_000)
    with OlderDrill(tmp_path, seed, launch=forked).running() as drill:
        for number, harm in enumerate((drill.put_back, drill.fork)):
            verdict = harm(seed + number)

            assert [] == verdict.lost, verdict
            assert verdict.since_count
