"""Files of a running cluster's replicas, for tests that damage them."""

from pathlib import Path

from tools.demo.cluster import Cluster
from tools.demo.damage_choice import replica_root


def newest_block(cluster: Cluster, index: int, container_id: int) -> Path:
    """Return the file of the newest block of a replica on agent `index`.

    Clients read only this block. Older blocks may remain from a write that was restarted in another
    container. An arriving replica of the same container is ignored.
    """
    files = replica_root(cluster, index, container_id).glob("chunks/*.block")
    return max(files, key=lambda file: int(file.stem))
