"""The control plane and the judge of its snapshot say the same of every container."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from health.judge import Judgement, judge
from health.rules import Rules
from health.words import Health
from scm.options import ScmOptions
from scm.snapshot import Exported
from spark_verify.batches import cut_of, nodes_of
from tests.support.booked import enter, sayable
from tests.support.random_clusters import random_cluster
from tests.support.scm_world import ScmWorld

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
