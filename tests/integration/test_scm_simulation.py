"""A real control plane and light datanodes through scripted days: all heals, no limit is broken."""

from pathlib import Path

import pytest

from tests.support.simulated_days import Days, first_day, second_day, third_day

pytestmark = pytest.mark.slow

NODES, RACKS, CONTAINERS = 16, 4, 120


def test_every_container_is_whole_again_whatever_happens(tmp_path: Path) -> None:
    """Deaths, returns, a decommission, a rack at rest, bad replicas, lost messages, kill -9.

    And the same seed gives the same orders, each at the same moment: nothing depends on the
    machine, or on the order of a hash.
    """
    again = Days(tmp_path / "again", 7, NODES, RACKS, CONTAINERS)
    with again.running():
        first_day(again)
    with Days(tmp_path / "days", 7, NODES, RACKS, CONTAINERS).running() as days:
        first = first_day(days)
        orders = days.world.orders.hexdigest()
        second = second_day(days)
        third_day(days)

    assert orders == again.world.orders.hexdigest()
    assert [] == days.world.broken
    assert [] == days.unwell()
    assert first["dead to first orders"] <= 10
    assert 0 == second["copies while they rest"]
    assert days.world.fewest_left >= 1
    assert min(days.world.counts[kind] for kind in ("replicate", "reconstruct", "delete")) > 0
