"""Who a datanode is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Who:
    """This datanode's name, and its cluster's; which version runs, and which of its starts."""

    datanode_id: str
    cluster_id: str
    version: str = ""
    boot_id: int = 0
