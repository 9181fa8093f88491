"""A plan of the verification that removes two replicas of one container, applied."""

from pathlib import Path

import pytest

from scm.api import wire
from scm.state.entities import CommandKind
from scm.state.options import ScmOptions
from spark_verify.options import VerifyOptions
from spark_verify.pipeline import VerifyRequest, verify
from suture.wire.mapping.plan_file import FinishedRun, read_plan
from tests.support.control.scm_world import ScmWorld, confirm, replica

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

NODES = ("dn1", "dn2", "dn3", "dn4", "dn5")


def test_plan_rows_that_remove_two_replicas_are_all_executed(tmp_path: Path) -> None:
    """The second row assumes that the first was ordered. A dry run shows both, and each is
    judged again when its turn comes. A third row is refused.
    """
    options = ScmOptions(stale_after_ms=1_000_000, dead_after_ms=2_000_000)
    with ScmWorld(tmp_path / "scm", options).running() as world:
        world.join(*NODES)
        made = world.made_closed()
        holders = {r.datanode_id for r in world.state.replicas.of(made.container_id)}
        for node in sorted(set(NODES) - holders):
            world.beat(node, replica(node, bcsid=made.sequence_id))
        confirm(world, *NODES)
        snapshot = world.control.queries.export_snapshot().place
        run = verify(
            VerifyRequest(
                snapshot, tmp_path / "out", options=VerifyOptions(reporting_min_percent=0)
            )
        ).directory
        rows = wire.plan_rows_from(read_plan(FinishedRun.opened(str(run)), only="delete"))

        shown = world.control.plans.apply_plan(rows, dry_run=True)
        assert not list(world.state.commands.values())
        done = world.control.plans.apply_plan(rows, worlds=[d.world for d in shown], dry_run=False)
        again = world.control.plans.apply_plan(rows[1:], dry_run=False)

        assert ["OK", "OK"] == [decision.code for decision in shown]
        assert [1, 1] == [len(decision.command_ids) for decision in done]
        deletes = [c for c in world.state.commands.values() if c.kind is CommandKind.DELETE]
        assert 2 == len(deletes)
        assert [0] == [len(decision.command_ids) for decision in again]
