"""A real control plane and light datanodes through scripted days: all heals, no limit is broken."""

from pathlib import Path

import pytest

from suture.wire.v1 import scm_pb2
from tests.support.simulation.simulated_days import Days, first_day, second_day, third_day

pytestmark = pytest.mark.slow

NODES, RACKS, CONTAINERS = 16, 4, 120


def test_every_container_is_whole_again_whatever_happens(tmp_path: Path) -> None:
    """Deaths, returns, a decommission, a rack in maintenance, bad replicas, lost messages and
    kill -9 occur. The same seed gives the same commands at the same time, so nothing depends on
    the machine or on a hash order.
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
    assert [] == days.unhealthy_containers()
    assert first["dead to first orders"] <= 10
    assert 0 == second["copies while they rest"]
    assert days.world.fewest_left >= 1
    assert min(days.world.counts[kind] for kind in ("replicate", "reconstruct", "delete")) > 0


def test_full_nodes_are_balanced_and_no_container_gets_worse(tmp_path: Path) -> None:
    """Four empty nodes join twelve: replicas move there, each copied before it is removed."""
    days = Days(
        tmp_path,
        7,
        NODES,
        RACKS,
        60,
        settings={"heartbeat_interval_ms": 30_000},
        empty_count=4,
        capacity_bytes=100 * 10**9,
    )
    with days.running():
        days.run_until(days.is_healed, within_s=7_200, step_s=60)
        request = scm_pb2.BalanceRequest(threshold_permille=100, iteration_count=200)
        request.dry_run = True
        shown = days.world.stub.Balance(request)
        orders_before = days.copies_ordered()
        request.dry_run = False
        days.world.stub.Balance(request)
        days.run_until(
            lambda: not days.world.stub.Balance(scm_pb2.BalanceRequest()).running,
            within_s=36_000,
            step_s=60,
        )
        done = days.world.stub.Balance(scm_pb2.BalanceRequest())
        days.run_until(days.is_healed, within_s=3_600, step_s=60)
        used = [node.used_bytes / node.capacity_bytes for node in days.world.nodes.values()]

    assert shown.moves
    assert not shown.running
    assert "balanced" == done.message
    assert all(abs(share - sum(used) / len(used)) <= 0.1 for share in used)
    assert 0 < done.moved_count <= days.copies_ordered() - orders_before
    assert [] == days.world.broken
