"""The control plane is lost and restored: nothing that was acknowledged is lost."""

import random
from pathlib import Path

import pytest

from bench.reliability.restore_drill import Drill
from tests.support.nursery import forked

pytestmark = [pytest.mark.fault, pytest.mark.slow]


def test_scm_restore_loses_no_acknowledged_data_and_reuses_no_block_id(tmp_path: Path) -> None:
    """Three restores with real processes at random moments: data stored before and after the
    backup reads back byte for byte, no block id is reused, and the cluster accepts new files.
    """
    seed = random.randrange(1_000_000)
    with Drill(tmp_path, seed, launch=forked).running() as drill:
        for number in range(3):
            verdict = drill.once(seed + number)

            assert ([], []) == (verdict.lost, verdict.reused), verdict
        assert drill.store(["new"])
