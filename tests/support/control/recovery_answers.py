"""Responses of a control plane and a datanode to `scm recover` after a restore. There is a
container with a tombstone, and a replica with a block whose metadata names its key.
"""

from typing import Final

from suture.client.put_metadata import PutMetadata, metadata_of
from suture.wire.v1 import container_pb2 as c
from suture.wire.v1 import datanode_pb2 as d
from suture.wire.v1 import scm_pb2 as s

REPLICA: Final = c.ReplicaReport(
    container_id=7,
    state=c.CLOSED,
    replica_index=1,
    tree=c.TreeSummary(algorithm=c.TREE_XXH3_64, generation=1, tombstone_count=1),
)
LOOKED_INTO: Final = s.RecoveredContainer(
    container_id=7, scheme="rs-3-2-64k", deleted_local_ids=[3]
)
RECOVERED: Final = (
    s.GetRestoreRecoveryResponse(
        restored=True,
        taken_at_ms=1_700_000_000_000,
        container_ids=[7],
        missing_datanode_ids=["dn-9"],
    ),
    s.GetContainerInfoResponse(
        container=s.ContainerInfo(
            container_id=7,
            state="CLOSED",
            scheme="rs-3-2-64k",
            replicas=[s.ContainerInfoReplica(replica=REPLICA)],
        )
    ),
    d.HashesPage(
        summary=REPLICA.tree,
        block_ids=[3],
        block_checksums=[0],
        block_deleted=[True],
    ),
    s.RecoverFromRestoreResponse(
        adopted_container_ids=[7],
        keys=[s.RecoveredKey(key="key", code="KEPT_ASIDE", kept_as="key.old")],
        deleted_keys=["other"],
    ),
)
AT_MS: Final = 1_700_000_000_000
NOTE: Final = PutMetadata("put-1", 1, 10, AT_MS)
FOUND_BLOCK: Final = c.BlockId(container_id=7, local_id=5, bcsid=6)
FOUND_KEY: Final = s.KeyInfo(
    key="found",
    size=10,
    created_at_ms=AT_MS,
    blocks=[s.BlockLocation(block_id=FOUND_BLOCK, length=10)],
)
FOUND: Final = (
    s.GetContainerInfoResponse(
        container=s.ContainerInfo(
            container_id=7,
            state="CLOSED",
            replicas=[
                s.ContainerInfoReplica(replica=c.ReplicaReport(container_id=7, state=c.CLOSED))
            ],
        )
    ),
    d.ListBlocksResponse(
        blocks=[
            c.BlockData(
                block_id=FOUND_BLOCK,
                chunks=[c.ChunkInfo(length=10, checksum=c.ChecksumData(type=c.NONE))],
                size=10,
                metadata=[
                    c.KeyValue(key=key, value=value)
                    for key, value in metadata_of("found", 0, NOTE, "")
                ],
            )
        ]
    ),
)
"""Responses about a replica with one block, whose metadata names its key."""
