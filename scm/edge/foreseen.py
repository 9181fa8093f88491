"""Converts `Foresee`: checks the request and builds the response."""

from typing import Final

from agent.rpc.v1 import scm_pb2
from agent.rpc.wire.codec import malformed, parse_int
from scm.administration.may_stop import StopImpact, StopQuery
from scm.edge import wire

KEEP_MAX: Final = 32  # copies: more than any container has


def question_from(message: scm_pb2.ForeseeRequest) -> StopQuery:
    """Check the targets that would be off. Raise RefusedError(MALFORMED_REQUEST)."""
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


def message(found: StopImpact) -> scm_pb2.ForeseeResponse:
    """Return the response message."""
    outlook = found.outlook
    return scm_pb2.ForeseeResponse(
        answer=found.answer,
        reasons=found.reasons,
        container_count=outlook.container_count,
        already_unreadable_count=outlook.already_count,
        unreadable_count=outlook.unreadable_count,
        unreadable_container_ids=outlook.unreadable_ids,
        doubtful_count=outlook.doubtful_count,
        doubtful_container_ids=outlook.doubtful_ids,
        last_copy_count=outlook.last_copy_count,
        lacking=outlook.lacking,
        lacking_replica_count=outlook.lacking_count,
        healths=outlook.healths,
        open_count=found.open_count,
        writer_count=found.writer_count,
        rebuild_bytes=outlook.rebuild_bytes,
        wait_ms=found.wait_ms,
        rebuild_ms=found.rebuild_ms,
        datanodes_left=found.stays_count,
        free_bytes=found.free_bytes,
        has_room=found.has_room,
        lost_count=outlook.lost_count,
        lost_container_ids=outlook.lost_ids,
        lost_states=outlook.lost_states,
    )
