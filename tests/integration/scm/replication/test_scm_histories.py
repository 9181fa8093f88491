"""A day of containers to which much happens: none ends where neither system nor command ends it."""

from pathlib import Path

import pytest

from tests.support.simulation.histories import cluster

pytestmark = pytest.mark.slow

WRITERS = 100  # some go on in the container of another; `make bench NAME=histories` has 12,000


def test_every_container_is_settled_or_a_documented_command_settles_it(tmp_path: Path) -> None:
    """Deaths while open, lost commits, disks, damage, departures, kill -9 of the control plane.

    Whatever does not come right by itself in 24 hours comes right by a command of the operator's.
    """
    verdict = cluster(tmp_path, 4, WRITERS)

    assert [] == verdict.stuck
    assert [] == verdict.broken
    assert WRITERS * 0.75 <= verdict.counts.total() <= WRITERS
    assert verdict.counts["settled"] > WRITERS // 2
    assert verdict.remedies.total() > 0, "nothing happened that needs a person"
