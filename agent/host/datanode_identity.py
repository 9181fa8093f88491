"""The ids that an agent process sends to the SCM when it registers and reports."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DatanodeIdentity:
    """The ids of this datanode and its cluster, and the version of the agent.

    `boot_id` is a random number that identifies one start of the process.
    """

    datanode_id: str
    cluster_id: str
    version: str = ""
    boot_id: int = 0
