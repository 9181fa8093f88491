"""Random containers that are healthy except for one or two facts. A rule about healthy containers
fails first on such containers.
"""

import random
from dataclasses import replace
from typing import Any, Final

from health.words import CONTAINER_STATES, NODE_HEALTHS, OP_STATES, OPS, REPLICA_STATES, HealthState
from tests.support.verification.snapshots import (
    ContainerRow,
    NodeRow,
    OpRow,
    ReplicaRow,
    SnapshotRows,
)

NODE_COUNT: Final = 80
ODD_NODES: Final = 8
UNTOUCHED: Final = 0.3
"""Share of the containers in which no fact is changed."""

OF_CONTAINER: Final[dict[str, tuple[Any, ...]]] = {
    "replication_type": ("RATIS", "EC", "STAND_ALONE"),
    "replication_factor": tuple(range(1, 6)),
    "state": CONTAINER_STATES,
    "sequence_id": (0, 9, 11),
    "acknowledged_bcsid": (None, 9, 11),
    "key_count": (0, 7),
    "pipeline_alive": (False,),
    "suppressed": (True,),
    "health_state": (None, *(s.name for s in HealthState)),
}
OF_REPLICA: Final[dict[str, tuple[Any, ...]]] = {
    "datanode_id": tuple(f"dn{i}" for i in range(NODE_COUNT)),
    "replica_index": tuple(range(7)),
    "state": REPLICA_STATES,
    "origin_datanode_id": ("", "dn3", "gone"),
    "bcsid": (None, 9, 11),
    "is_empty": (True,),
    "tree_algorithm": (None, "crc32c"),
    "root": (None, 0, -1, 9),
    "settled_root": (None, 7, 9),
    "tombstones_checksum": (None, 0, 5),
    "finding_count": (1, 3),
    "is_contradictory": (True,),
    "is_barred": (True,),
    "is_hopeful": (True,),
    "load_error": ("torn",),
}


def nearly_well(draw: random.Random, container_count: int) -> SnapshotRows:
    """Return a cluster of `container_count` containers. In most of them, one or two random facts
    are changed; all other facts are those of a healthy container."""
    nodes = [
        NodeRow(f"dn{i}", rack=f"/r{i % 8}", version=f"1.{i // 40}") for i in range(NODE_COUNT)
    ]
    for i in draw.sample(range(NODE_COUNT), ODD_NODES):
        odd = {"health": NODE_HEALTHS, "op_state": OP_STATES, "has_reported": (False,)}
        name = draw.choice(tuple(odd))
        nodes[i] = replace(nodes[i], **{name: draw.choice(odd[name])})
    rows = SnapshotRows(nodes=nodes)
    for container_id in range(1, container_count + 1):
        _add(rows, draw, container_id)
    return rows


def _add(rows: SnapshotRows, draw: random.Random, container_id: int) -> None:
    data, parity = draw.choice(((0, 0), (0, 0), (3, 2), (2, 1)))
    factor = data + parity or draw.choices((3, 2, 1), (8, 1, 1))[0]
    state = draw.choices(("CLOSED", "OPEN", "QUASI_CLOSED"), (8, 2, 1))[0]
    box = ContainerRow(
        container_id,
        "EC" if data else "RATIS",
        factor,
        data or None,
        parity or None,
        state,
        sequence_id=10,
        health_state="HEALTHY",
    )
    settled = draw.choice((None, 7))
    half = draw.choice((0, 40))  # nodes of one version
    placed = draw.sample(range(half, half + 40), factor)
    replicas = [
        ReplicaRow(
            container_id,
            f"dn{node}",
            replica_index=place + 1 if data else 0,
            state=state,
            origin_datanode_id=f"dn{node}",
            bcsid=10,
            block_count=3,
            used_bytes=1_000,
            tree_algorithm="xxh3_64",
            root=7,
            settled_root=settled,
            tombstones_checksum=0,
            volume_id=f"v{node % 3}",
        )
        for place, node in enumerate(placed)
    ]
    for _ in range(0 if draw.random() < UNTOUCHED else draw.choice((1, 1, 2))):
        box = _changed(rows, draw, box, replicas)
    rows.containers.append(box)
    rows.replicas += replicas


def _changed(
    rows: SnapshotRows, draw: random.Random, box: ContainerRow, replicas: list[ReplicaRow]
) -> ContainerRow:
    """Change a random fact of a container, in its row, its replicas or its pending commands; return
    the container's row."""
    what = draw.choice(("container", "replica", "replica", "all", "less", "more", "op"))
    if what == "container":
        name = draw.choice(tuple(OF_CONTAINER))
        changed = replace(box, **{name: draw.choice(OF_CONTAINER[name])})
        if changed.replication_type == "EC" and not changed.ec_data:
            return replace(changed, ec_data=3, ec_parity=2)
        return changed
    if what == "op":
        node, index = f"dn{draw.randrange(NODE_COUNT)}", draw.randint(0, 3)
        rows.pending_ops.append(OpRow(box.container_id, draw.choice(OPS), node, index))
    elif not replicas:
        return box
    elif what == "less":
        replicas.pop(draw.randrange(len(replicas)))
    elif what == "more":
        replicas.append(replace(replicas[0], datanode_id=f"dn{draw.randrange(NODE_COUNT)}"))
    else:
        name = draw.choice(tuple(OF_REPLICA))
        value = draw.choice(OF_REPLICA[name])
        places = range(len(replicas)) if what == "all" else [draw.randrange(len(replicas))]
        for place in places:
            if what == "all" and name == "datanode_id":
                continue
            replicas[place] = replace(replicas[place], **{name: value})
    return box
