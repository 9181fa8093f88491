"""The control plane is lost and restored: nothing that was acknowledged is lost."""

import random
from pathlib import Path

import pytest

from bench.promises.restore_drill import Drill
from tests.support.faults.nursery import forked

pytestmark = [pytest.mark.fault, pytest.mark.slow]


def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """
    Three times over, real processes, at random moments: what was stored before the backup and after
    it is read back byte by byte, no block id is given out twice, and the cluster takes new files.
    """
    seed = random.randrange(1_000_000)
    with Drill(tmp_path, seed, launch=forked).running() as drill:
        for number in range(3):
            verdict = drill.once(seed + number)

            assert ([], []) == (verdict.lost, verdict.reused), verdict
        assert drill.store(["new"])
