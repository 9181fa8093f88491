"""The control plane and the judge of its snapshot say the same of every container."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from health.judge import Judgement, judge
from health.rules import Rules
from health.words import Health
from merkle.replica import ReplicaState
from scm.options import ScmOptions
from scm.snapshot import Exported
from spark_verify.batches import cut_of, nodes_of
from tests.support.booked import enter, sayable
from tests.support.random_clusters import random_cluster
from tests.support.scm_world import ScmWorld, confirm, pass_time

OPTIONS = ScmOptions(heartbeat_interval_ms=1_000, check_interval_ms=1_000)
CONTAINERS = 300
TICKS = 4


def told_and_judged(exported: Exported) -> tuple[dict[int, str | None], dict[int, str]]:
    """Return the control plane's states by container, and those of the judge on its snapshot."""
    tables: dict[str, pa.Table] = {
        name: pq.read_table(exported.path / name)
        for name in ("containers", "replicas", "pending_ops", "nodes")
    }
    boxes = tables["containers"].to_pylist()
    found = _judged(tables)
    ids = found.view.batch.containers.container_id
    own = np.isin(ids, [box["container_id"] for box in boxes])
    return (
        {box["container_id"]: box["health_state"] for box in boxes},
        {
            int(number): Health(state).name
            for number, state in zip(ids[own], found.verdicts.state[own].tolist(), strict=True)
        },
    )


def _judged(tables: dict[str, pa.Table]) -> Judgement:
    nodes = tables["nodes"]
    alive = {row["rack"] for row in nodes.to_pylist() if row["health"] != "DEAD"}
    batch = cut_of(
        tables["containers"], tables["replicas"], tables["pending_ops"], nodes_of(nodes)
    ).batch
    return judge(batch, Rules(rack_count=len(alive)))


@pytest.mark.parametrize("seed", range(4))
def test_every_state_is_the_judges(tmp_path: Path, seed: int) -> None:
    """
    Random containers, nodes and commands, reported to a control plane that then works on them: in
    each tick the states that it exports are those of the judge over what it exports.
    """
    rows = sayable(random_cluster(random.Random(seed), CONTAINERS))
    with ScmWorld(tmp_path, OPTIONS).running() as world:
        enter(world, rows)
        compared, words = 0, set[str]()
        for _ in range(TICKS):
            world.clock.advance_s(1)
            world.control.tick()
            told, judged = told_and_judged(world.control.export_snapshot())
            known = {number: word for number, word in told.items() if word is not None}
            compared += len(known)
            words |= set(known.values())

            assert {number: judged[number] for number in known} == known
        assert compared > TICKS * CONTAINERS / 2
        assert len(words) >= 8, "random worlds are in many states"


def one_rack(path: Path) -> ScmWorld:
    """Return a world of three nodes on one rack, and six whole containers; all have been judged."""
    world = ScmWorld(path, ScmOptions(check_interval_ms=10_000))
    world.join("dn1", "dn2", "dn3")
    confirm(world, "dn1", "dn2", "dn3")
    for _ in range(6):
        world.made_closed()
    pass_time(world, 11, "dn1", "dn2", "dn3")
    return world


def test_what_a_second_rack_changes_is_judged_anew(tmp_path: Path) -> None:
    """
    Three replicas on one rack were enough while there was no other. Until a container is looked at
    again nothing is said of it, and a round later all have been, also those that were well.
    """
    with one_rack(tmp_path).running() as world:
        before, _ = told_and_judged(world.control.export_snapshot())
        world.join("dn4", racks=("/rack-2",))
        world.beat("dn4", full=True)
        world.control.tick()
        told, judged = told_and_judged(world.control.export_snapshot())
        pass_time(world, 11, "dn1", "dn2", "dn3", "dn4")
        at_last, judged_at_last = told_and_judged(world.control.export_snapshot())

        assert {"HEALTHY"} == set(before.values())
        known = {number: word for number, word in told.items() if word is not None}
        assert {"MIS_REPLICATED"} == set(judged.values())
        assert len(known) < len(judged)
        assert {number: judged[number] for number in known} == known
        assert judged_at_last == at_last


def test_of_a_node_that_has_just_died_nothing_old_is_told(tmp_path: Path) -> None:
    """
    Its death is in the snapshot before anybody has looked at its containers: no state is told.
    """
    with one_rack(tmp_path).running() as world:
        world.clock.advance_s(100)
        world.keep_alive("dn1", "dn2")
        told, judged = told_and_judged(world.control.export_snapshot())

        assert {"UNDER_REPLICATED"} == set(judged.values())
        assert {None} == set(told.values())


def test_a_container_that_is_whole_again_is_called_so(tmp_path: Path) -> None:
    """
    What was said of it while a replica was gone is not said for ever.
    """
    with one_rack(tmp_path).running() as world:
        lost = world.state.replicas.get((1, "dn3"))
        assert lost is not None
        world.beat("dn3", replace(lost, state=ReplicaState.DELETED))
        pass_time(world, 11, "dn1", "dn2", "dn3")
        told, judged = told_and_judged(world.control.export_snapshot())
        world.beat("dn3", lost)
        pass_time(world, 11, "dn1", "dn2", "dn3")
        again, judged_again = told_and_judged(world.control.export_snapshot())

        assert "UNDER_REPLICATED" == told[1] == judged[1]
        assert judged_again == again
        assert {"HEALTHY"} == set(again.values())
