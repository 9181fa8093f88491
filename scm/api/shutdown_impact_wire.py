"""Converts the messages of the RPC `CheckStop` from and to protobuf."""

from typing import Final

from scm.administration.shutdown_impact import StopImpact, StopQuery
from scm.api import wire
from suture.wire.mapping.codec import malformed, parse_int
from suture.wire.mapping.message_map import MessageMap
from suture.wire.v1 import scm_pb2

KEEP_MAX: Final = 32  # copies: more than any container has
IMPACT: Final = MessageMap(
    scm_pb2.CheckStopResponse,
    StopImpact,
    within=["outlook"],
    already_unreadable_count="outlook.already_count",
    unreadable_container_ids="outlook.unreadable_ids",
    doubtful_container_ids="outlook.doubtful_ids",
    missing_replica_count="outlook.missing_replica_count",
    lost_container_ids="outlook.lost_ids",
    datanodes_left="stays_count",
)


def question_from(message: scm_pb2.CheckStopRequest) -> StopQuery:
    """Convert the question about a stop of datanodes or volumes from protobuf.

    Raise RefusedError(MALFORMED_REQUEST) if a datanode id or volume id is invalid.
    """
    if len(message.volumes) > wire.IDS_MAX:
        raise malformed("volumes", f"has more than {wire.IDS_MAX}")
    volumes = tuple(
        (
            wire.parse_name(volume.datanode_id, f"volumes[{i}].datanode_id"),
            wire.parse_name(volume.volume_id, f"volumes[{i}].volume_id"),
        )
        for i, volume in enumerate(message.volumes)
    )
    names = message.datanode_ids
    return StopQuery(
        tuple(wire.node_ids_from(names)) if names or not volumes else (),
        volumes,
        message.for_good,
        parse_int(message.keep_count, "keep_count", low=0, high=KEEP_MAX) or 1,
    )
