"""Where the bytes of a running cluster's replicas lie, for tests that damage them."""

from pathlib import Path

from tools.demo.cluster import Cluster
from tools.demo.damage_choice import replica_root


def newest_block(cluster: Cluster, index: int, container_id: int) -> Path:
    """Return the file of the newest block of a replica on agent `index`.

    Older ones are what a write left that was begun again elsewhere, and beside the replica another
    of the same container may be arriving: neither is what a client reads.
    """
    files = replica_root(cluster, index, container_id).glob("chunks/*.block")
    return max(files, key=lambda file: int(file.stem))
