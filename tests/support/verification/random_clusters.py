"""Random clusters for the differential test. Unusual combinations of facts are far more frequent
than in real clusters.

The caller passes the generator of random numbers. With a seeded generator, a cluster can be
recreated. With a generator of hypothesis, a failing case can be shrunk.
"""

import random
from typing import Final

from health.words import CONTAINER_STATES, REPLICA_STATES
from tests.support.verification.snapshots import (
    ContainerRow,
    NodeRow,
    OpRow,
    ReplicaRow,
    SnapshotRows,
)

NODE_COUNT: Final = 60
RACK_COUNT: Final = 4


def random_nodes(draw: random.Random) -> list[NodeRow]:
    """Return nodes: half of them are healthy, and the others are in all other states."""
    healths = ("HEALTHY", "STALE", "DEAD", "HEALTHY_READONLY")
    op_states = (
        "IN_SERVICE",
        "DECOMMISSIONING",
        "DECOMMISSIONED",
        "ENTERING_MAINTENANCE",
        "IN_MAINTENANCE",
    )
    nodes = []
    for i in range(NODE_COUNT):
        fine = i % 2 == 0
        nodes.append(
            NodeRow(
                f"dn{i}",
                rack=f"/rack{draw.randrange(RACK_COUNT)}",
                health="HEALTHY" if fine else draw.choice(healths),
                op_state="IN_SERVICE" if fine else draw.choice(op_states),
            )
        )
    return nodes


def random_cluster(draw: random.Random, container_count: int) -> SnapshotRows:
    """Return a cluster of `container_count` containers, every fact drawn by `draw`."""
    rows = SnapshotRows(nodes=random_nodes(draw))
    for container_id in range(1, container_count + 1):
        _add_container(rows, draw, container_id)
    return rows


def _add_container(rows: SnapshotRows, draw: random.Random, container_id: int) -> None:
    kind = draw.choices(("RATIS", "EC", "STAND_ALONE"), (6, 4, 1))[0]
    data, parity = draw.choice(((3, 2), (2, 1))) if kind == "EC" else (0, 0)
    factor = data + parity or draw.choices((3, 1, 2), (8, 1, 1))[0]
    state = draw.choices(CONTAINER_STATES, (2, 1, 6, 12, 1, 1, 1))[0]
    if kind == "EC" and state == "QUASI_CLOSED":
        state = "CLOSED"
    box = ContainerRow(
        container_id,
        kind,
        factor,
        data or None,
        parity or None,
        state,
        sequence_id=10,
        acknowledged_bcsid=draw.choice((None, None, 9, 10, 11, 12)),  # 12: no replica has it
        key_count=draw.choice((0, 5, 5, 5)),
        used_bytes=draw.randrange(10**9),
        pipeline_alive=draw.random() < 0.8,
        suppressed=draw.random() < 0.03,
    )
    rows.containers.append(box)
    count = draw.choice((0, 1, factor - 1, factor, factor, factor, factor + 1, factor + 2))
    crowded = state == "QUASI_CLOSED" and draw.random() < 0.2  # few origins, many copies
    count = draw.choice((5, 6, 7)) if crowded else count
    nodes = draw.sample(range(NODE_COUNT), count + 3)
    tame = draw.random() < 0.5  # half of them mostly right, so that single faults are visible alone
    for place in range(count):
        index = 0
        if kind == "EC":
            index = place + 1 if tame and place < factor else draw.randint(1, factor)
        rows.replicas.append(_replica(draw, box, nodes, place, index, tame, crowded))
    _add_ops(rows, draw, box, nodes, count)


def _replica(
    draw: random.Random,
    box: ContainerRow,
    nodes: list[int],
    place: int,
    index: int,
    tame: bool,
    crowded: bool,
) -> ReplicaRow:
    usual = box.state if box.state in REPLICA_STATES else "CLOSED"
    states = ("CLOSED", "QUASI_CLOSED", "UNHEALTHY", "UNHEALTHY", "OPEN", "CLOSING", "INVALID")
    state = usual if tame and draw.random() < 0.8 else draw.choice((usual, *states))
    is_empty = draw.random() < (0.05 if tame else 0.25)
    origin = f"dn{nodes[draw.randrange(place + 1)]}" if draw.random() < 0.4 else ""
    origin = f"dn{nodes[draw.randrange(2)]}" if crowded else origin
    return ReplicaRow(
        box.container_id,
        f"dn{nodes[place]}",
        replica_index=index,
        state=state,
        origin_datanode_id=origin or draw.choice(("", f"dn{nodes[place]}")),
        bcsid=draw.choices((10, 9, 11, None), (8, 2, 1, 1))[0],
        is_empty=is_empty,
        block_count=0 if is_empty else 3,
        used_bytes=draw.randrange(10**9),
        tree_algorithm=draw.choices(("xxh3_64", "crc32c", None), (16, 2, 1))[0],
        root=draw.choices((7, -8, 9, None), (10, 2, 1, 3))[0],
        settled_root=draw.choices((None, 7, 9), (6, 3, 1))[0],
        tombstones_checksum=draw.choices((0, 5, None), (12, 1, 1))[0],
        volume_id=f"v{draw.randrange(4)}",
        finding_count=draw.choices((0, 2), (9, 1))[0],
        is_contradictory=draw.random() < 0.05,
    )


def _add_ops(
    rows: SnapshotRows, draw: random.Random, box: ContainerRow, nodes: list[int], count: int
) -> None:
    for number in range(draw.choices((0, 1, 2, 3), (6, 2, 1, 1))[0]):
        op = draw.choice(("ADD", "DELETE", "DELETE", "RECONCILE", "CLOSE"))
        place = draw.randrange(count) if op == "DELETE" and count else count + number % 3
        index = draw.randint(1, box.replication_factor) if box.replication_type == "EC" else 0
        rows.pending_ops.append(
            OpRow(box.container_id, op, f"dn{nodes[place]}", index, command_id=number)
        )
