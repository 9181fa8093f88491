"""The published vectors in a live control plane: one for all of them that share the rules."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from health.judge import diagnose
from scm.cluster.commands.loads import RECONSTRUCT_TYPE
from scm.state.entities import CommandKind
from scm.state.options import ScmOptions
from tests.support.control.booked import enter, sayable
from tests.support.control.scm_world import ScmWorld
from tests.support.verification.judged import need_of, opinion_of
from tests.support.verification.vectors import UNKNOWN, Told, by_rules, told, vectors, world

KINDS = (CommandKind.REPLICATE, RECONSTRUCT_TYPE, CommandKind.DELETE)
BUSY = 1_000
"""Commands of each kind that every datanode says it has: with more, containers would change."""

GROUPS = by_rules(vector for vector in vectors() if vector.is_live)


@dataclass(frozen=True)
class Shown:
    """What a control plane shows of a container."""

    state: str
    """Of the container itself."""
    health: str | None
    told: Told
    need: tuple[int, int]


@pytest.mark.parametrize("own", GROUPS, ids=str)
def test_a_live_control_plane_finds_what_the_vectors_say(
    own: tuple[tuple[str, int], ...], tmp_path: Path
) -> None:
    """Datanodes report the replicas. The exported state and the other results equal the table,
    except for containers that the control plane advances before it judges them.
    """
    group = GROUPS[own]
    maintenance_min = dict(own).get("maintenance_min", ScmOptions().maintenance_replica_min)
    options = ScmOptions(
        heartbeat_interval_ms=1_000,
        check_interval_ms=1_000,
        heal=False,
        maintenance_replica_min=maintenance_min,
    )
    rows = sayable(world(group))
    with ScmWorld(tmp_path, options).running() as live:
        for node in rows.nodes:
            live.queues[node.datanode_id] = tuple((kind, BUSY) for kind in KINDS)
        enter(live, rows)

        live.control.tick()

        shown = shown_by(live)

    stays = [(i, v) for i, v in enumerate(group, 1) if not v.becomes]
    assert [(v.name, v.told, v.need) for _, v in stays] == [
        (v.name, shown[i].told, shown[i].need if v.need else None) for i, v in stays
    ]
    known = [(i, v) for i, v in stays if v.what != UNKNOWN]
    assert [(v.name, v.told.states.split(" + ")[-1]) for _, v in known] == [
        (v.name, shown[i].health) for i, v in known
    ]
    moved = [(i, v) for i, v in enumerate(group, 1) if v.becomes]
    assert [(v.name, v.becomes) for _, v in moved] == [(v.name, shown[i].state) for i, v in moved]


def shown_by(live: ScmWorld) -> dict[int, Shown]:
    """Return what a control plane shows of each container, known to it or not."""
    table = pq.read_table(live.control.queries.export_snapshot().path / "containers")
    exported = {row["container_id"]: row for row in table.to_pylist()}
    batches = live.control.batches
    ids = {*exported, *live.state.replicas.container_ids()}
    found = diagnose(batches.of(ids), batches.rules())
    return {
        number: Shown(
            exported[number]["state"] if number in exported else "",
            exported[number]["health_state"] if number in exported else None,
            told(opinion_of(found, i)),
            need_of(found, i),
        )
        for i, number in enumerate(found.view.batch.containers.container_id.tolist())
    }
