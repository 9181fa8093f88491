"""Converts the reports of Ozone's SCM to rows of a snapshot. No I/O.

The SCM does not report tombstones and pending deletes. The rows state that these are unknown, or
have the value for which `health/` plans the fewest actions. Volumes, scan times and findings come
from scrubs.
"""

from dataclasses import dataclass
from typing import Any, Final

from health.tables.snapshot_columns import NODES
from health.words import CONTAINER_STATES, NODE_HEALTHS, OP_STATES, REPLICA_STATES
from ozone.cluster.listings import datanode_id, pipeline_id
from ozone.cluster.scrubs import ScrubbedReplica

Row = dict[str, Any]  # values by column name; nullable columns may be absent

TYPES: Final = {1: "RATIS", 2: "STAND_ALONE", 4: "EC"}  # ReplicationType
STATES: Final = {  # LifeCycleState
    1: "OPEN",
    2: "CLOSING",
    3: "QUASI_CLOSED",
    4: "CLOSED",
    5: "DELETING",
    6: "DELETED",
    7: "RECOVERING",
}
HEALTHS: Final = {1: "HEALTHY", 2: "STALE", 3: "DEAD", 6: "HEALTHY_READONLY"}  # NodeState
NODE_STATES: Final = {
    1: "IN_SERVICE",
    2: "ENTERING_MAINTENANCE",
    3: "IN_MAINTENANCE",
    4: "DECOMMISSIONING",
    5: "DECOMMISSIONED",
}
ALGORITHM: Final = "crc32c"
ROOT_END: Final = 2**32

assert set(STATES.values()) == set(CONTAINER_STATES)
assert set(HEALTHS.values()) == set(NODE_HEALTHS)
assert set(NODE_STATES.values()) == set(OP_STATES)


class UnsupportedValue(ValueError):
    """Raised for a value of an SCM that this release does not know."""


@dataclass(frozen=True, slots=True)
class ExportContext:
    """The facts that are the same for all rows of one export."""

    as_of_ms: int
    has_reported: bool
    """True if the SCM has left safe mode, so that the datanodes have reported their replicas."""


def lacks_pipeline(info: Any, open_pipelines: frozenset[str]) -> bool:
    """Return whether a container is open and its pipeline is not in `open_pipelines`."""
    return STATES.get(info.state) == "OPEN" and pipeline_id(info.pipeline_id) not in open_pipelines


def container_row(info: Any, open_pipelines: frozenset[str], instant: ExportContext) -> Row:
    """Return the snapshot row of a container.

    Raise UnsupportedValue if one of its values is unknown.
    """
    kind, state = TYPES.get(info.type), STATES.get(info.state)
    if kind is None or state is None:
        raise UnsupportedValue(f"replication type {info.type}, state {info.state}")
    is_ec = kind == "EC"
    coding = info.coding
    width = coding.data + coding.parity if is_ec else info.factor
    if width < 1 or (is_ec and (coding.data < 1 or coding.parity < 1)):
        raise UnsupportedValue(f"{kind} of {width} replicas")
    return {
        "container_id": info.container_id,
        "replication_type": kind,
        "replication_factor": width,
        "ec_data": coding.data if is_ec else None,
        "ec_parity": coding.parity if is_ec else None,
        "state": state,
        "sequence_id": max(info.sequence_id, 0),
        "key_count": info.key_count,
        "used_bytes": info.used_bytes,
        # The state may have changed since the export began.
        "state_since_ms": min(info.state_since_ms, instant.as_of_ms),
        "pipeline_alive": state == "OPEN" and not lacks_pipeline(info, open_pipelines),
        "suppressed": info.suppressed,
        "owes_deletes": True,
    }


def replica_row(
    replica: Any, instant: ExportContext, scrubbed: ScrubbedReplica | None = None
) -> Row:
    """Return the snapshot row of a replica, with its scrub results.

    The roots of the scrub are used only if the datanode still reports the same tree. Raise
    UnsupportedValue if one of the values is unknown.
    """
    if replica.state not in REPLICA_STATES:
        raise UnsupportedValue(f"a replica in state {replica.state}")
    root, settled_root = root_of(replica), None
    if scrubbed is not None and scrubbed.root == replica.checksum:
        root, settled_root = scrubbed.root, scrubbed.settled_root  # valid even if the root is 0
    row = {
        "container_id": replica.container_id,
        "datanode_id": datanode_id(replica.datanode),
        "replica_index": replica.index,
        "state": replica.state,
        "origin_datanode_id": replica.origin,
        "bcsid": replica.sequence_id if replica.sequence_id >= 0 else None,
        "block_count": max(replica.key_count, 0),
        "used_bytes": max(replica.used_bytes, 0),
        "is_empty": replica.key_count == 0 and replica.used_bytes == 0,
        "tree_algorithm": None if root is None else ALGORITHM,
        "root": root,
        "settled_root": settled_root,
        "volume_id": "",
        "finding_count": 0,
        "is_contradictory": False,
        "is_barred": False,
        "is_hopeful": False,
        "reported_at_ms": instant.as_of_ms,
    }
    if scrubbed is not None:
        row["volume_id"] = scrubbed.volume_id
        row["data_scan_at_ms"] = min(scrubbed.read_at_ms, instant.as_of_ms) or None
        row["finding_count"] = scrubbed.damage_count
    return row


def root_of(replica: Any) -> int | None:
    """Return the root that a datanode reported, or None if the replica has no tree.

    Ozone reports 0 for a replica without a tree, but 0 is also the root of an empty tree.
    Therefore, 0 means that there is no tree only if the replica has blocks.
    """
    root: int = replica.checksum
    if not 0 <= root < ROOT_END:
        raise UnsupportedValue(f"a root of {root}")
    is_told = replica.HasField("checksum") and (root != 0 or replica.key_count == 0)
    return root if is_told else None


def node_row(datanode: str, node: Any, usage: Any, instant: ExportContext) -> Row:
    """Return the snapshot row of a node. Raise UnsupportedValue if one of its values is unknown."""
    health = HEALTHS.get(node.states[0] if node.states else 0)
    op_state = NODE_STATES.get(node.op_states[0] if node.op_states else 0)
    if health is None or op_state is None:
        raise UnsupportedValue(
            f"datanode {datanode} in states {list(node.states)}, {list(node.op_states)}"
        )
    is_heard = health in ("HEALTHY", "HEALTHY_READONLY")
    return {
        **_place(node.datanode),
        "health": health,
        "op_state": op_state,
        "op_expiry_ms": node.datanode.op_state_expiry_s * 1000 or None,
        "last_heartbeat_at_ms": instant.as_of_ms if is_heard else 0,
        "has_reported": instant.has_reported,
        "capacity_bytes": 0 if usage is None else max(usage.capacity, 0),
        "available_bytes": 0 if usage is None else max(usage.remaining, 0),
        "datanode_id": datanode,
    }


def removed_node_row(datanode: Any) -> Row:
    """Return the snapshot row of a node that has a replica but is no longer listed by the SCM."""
    return {
        **_place(datanode),
        "health": "DEAD",
        "op_state": "DECOMMISSIONED",
        "last_heartbeat_at_ms": 0,
        "has_reported": False,
        "capacity_bytes": 0,
        "available_bytes": 0,
    }


def _place(datanode: Any) -> dict[str, Any]:
    """Return the columns with the address and the rack of a node.

    The lengths of queues, which the SCM does not report, are 0.
    """
    return {
        "datanode_id": datanode_id(datanode),
        "address": datanode.host_name or datanode.ip_address,
        "rack": datanode.network_location,
        "version": "",
        **dict.fromkeys(_QUEUES, 0),
    }


_QUEUES: Final = tuple(c.name for c in NODES if c.name.startswith("queued_"))
