"""Bits that flip by the thousand: in memory they condemn nothing, on the medium none escapes.

`python -m bench scan` does the same with 100,000 and 1,000.
"""

import shutil
from pathlib import Path

import pytest

from scanner.finding import Verdict
from tests.support.faults.flips import (
    flip_in_memory,
    flip_in_system_calls,
    flip_on_disk,
    stored_replica,
)

pytestmark = pytest.mark.fault
MEMORY_FLIPS = 10_000
SYSTEM_CALL_SCANS = 10
DISK_FLIPS = 100


def test_flips_in_buffers_are_never_corruption() -> None:
    """Bits flipped in the buffers of first reads or re-reads never mark good data as damaged."""
    lies = flip_in_memory(MEMORY_FLIPS)

    assert lies.flip_count >= MEMORY_FLIPS
    assert {Verdict.SUSPECT_HOST} == set(lies.verdicts)


@pytest.mark.skipif(shutil.which("cc") is None, reason="the flipping library needs a C compiler")
def test_flips_in_real_reads_are_never_corruption(tmp_path: Path) -> None:
    """The same on a real volume, where the bits flip behind the system call."""
    lies = flip_in_system_calls(tmp_path, SYSTEM_CALL_SCANS)

    assert lies.flip_count > 500
    assert {Verdict.SUSPECT_HOST} == set(lies.verdicts)


def test_flips_on_the_medium_are_all_found_classed_and_explained(tmp_path: Path) -> None:
    """Cold or under a warm page cache: the chunk, the class, and the very bit."""
    stored = stored_replica(tmp_path / "volume")

    flips = flip_on_disk(stored, DISK_FLIPS)

    stored.close()
    assert DISK_FLIPS == flips.flip_count == 2 * flips.warm_count
    assert (DISK_FLIPS, DISK_FLIPS, DISK_FLIPS) == (flips.found, flips.classed, flips.explained)
    assert 0 == flips.other_findings
