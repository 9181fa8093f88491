"""A container with its replicas, pending commands and nodes: the input of the reference
implementation of container health.
"""

from dataclasses import dataclass

from tests.support.verification.snapshots import ContainerRow, NodeRow, OpRow, ReplicaRow

TREE = {"CLOSED", "QUASI_CLOSED", "UNHEALTHY"}
UP = {"HEALTHY", "HEALTHY_READONLY"}
LEAVING = {"DECOMMISSIONING", "DECOMMISSIONED"}
RESTING = {"ENTERING_MAINTENANCE", "IN_MAINTENANCE"}
COUNTED = TREE | {"OPEN", "CLOSING"}


@dataclass
class Case:
    """A container with its replicas, pending commands and nodes."""

    box: ContainerRow
    replicas: list[ReplicaRow]
    ops: list[OpRow]
    nodes: dict[str, NodeRow]
    rack_count: int
    maintenance_min: int = 2
    ec_redundancy: int = 1

    def __post_init__(self) -> None:
        self.present = [r for r in self.replicas if not self.gone(r) and r.state in COUNTED]
        self.width = (
            (self.box.ec_data or 0) + (self.box.ec_parity or 0)
            if self.box.replication_type == "EC"
            else self.box.replication_factor
        )
        self.adds = [o for o in self.ops if o.op == "ADD"]
        holders = {r.datanode_id for r in self.replicas}
        dead = {r.datanode_id for r in self.replicas if self.gone(r)}
        deletes = [o for o in self.ops if o.op == "DELETE"]
        self.deletes = [o for o in deletes if o.datanode_id not in dead]
        self.strays = [o for o in deletes if o.datanode_id not in holders]

    def gone(self, r: ReplicaRow) -> bool:
        node = self.nodes[r.datanode_id]
        return node.health == "DEAD" and node.op_state != "IN_MAINTENANCE"

    def going(self, r: ReplicaRow) -> bool:
        """Return True if a delete of the replica is pending."""
        return r.datanode_id in {o.datanode_id for o in self.deletes}

    def up(self, r: ReplicaRow) -> bool:
        return self.nodes[r.datanode_id].health in UP

    def op(self, r: ReplicaRow) -> str:
        op_state = self.nodes[r.datanode_id].op_state
        return "D" if op_state in LEAVING else "M" if op_state in RESTING else "S"

    def origin(self, r: ReplicaRow) -> str:
        return r.origin_datanode_id or r.datanode_id
