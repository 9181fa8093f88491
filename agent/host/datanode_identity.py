"""The ids with which an agent process registers with the SCM and reports to it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DatanodeIdentity:
    """Ids of this datanode and its cluster, the agent's version, and the id of this process
    start."""

    datanode_id: str
    cluster_id: str
    version: str = ""
    boot_id: int = 0
