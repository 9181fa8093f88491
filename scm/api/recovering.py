"""Converts the RPCs of the recovery after a restore from and to protobuf."""

from typing import Final

from scm.administration.restore_recovery import (
    InspectedContainer,
    RecoveredPut,
    RecoveryBacklog,
    RecoveryCall,
    RecoveryResult,
)
from scm.api.wire import IDS_MAX, KEYS_MAX, key_from, parse_number, scheme_from
from scm.state.entities import Key
from suture.wire.mapping.codec import malformed, parse_block_id, parse_container_id
from suture.wire.mapping.message_map import MessageMap
from suture.wire.v1 import scm_pb2

DELETED_MAX: Final = 2_000_000  # blocks of all containers of one call
RECOVERED_KEY: Final = MessageMap(scm_pb2.RecoveredKey, RecoveredPut, key="name")


def found_from(request: scm_pb2.RecoverFromRestoreRequest) -> RecoveryCall:
    """Convert a part of what `scm recover` found on datanodes from protobuf."""
    return RecoveryCall(
        _looked_from(request),
        _keys_from(request),
        last_local_id=parse_number(request.last_local_id, "last_local_id"),
        is_end=request.finish,
        is_forced=request.force,
    )


def _looked_from(request: scm_pb2.RecoverFromRestoreRequest) -> list[InspectedContainer]:
    _limit(len(request.containers), IDS_MAX, "containers")
    _limit(sum(len(c.deleted_local_ids) for c in request.containers), DELETED_MAX, "blocks")
    return [
        InspectedContainer(
            parse_container_id(one.container_id, f"containers[{i}].container_id"),
            scheme_from(one),
            frozenset(
                parse_block_id(local_id, f"containers[{i}].deleted_local_ids")
                for local_id in one.deleted_local_ids
            ),
        )
        for i, one in enumerate(request.containers)
    ]


def _keys_from(request: scm_pb2.RecoverFromRestoreRequest) -> list[Key]:
    """Convert the keys that `scm recover` found from protobuf.

    Several keys may have the same name.
    """
    _limit(len(request.keys), KEYS_MAX, "keys")
    return [key_from(message, f"keys[{i}]") for i, message in enumerate(request.keys)]


def to_recover_message(found: RecoveryBacklog) -> scm_pb2.GetRestoreRecoveryResponse:
    """Build the response with the containers that `scm recover` must examine."""
    restored = found.restored
    return scm_pb2.GetRestoreRecoveryResponse(
        restored=restored is not None,
        taken_at_ms=0 if restored is None else restored.taken_at_ms,
        missing_datanode_ids=found.missing,
        container_ids=found.container_ids,
    )


def recovered_message(made: RecoveryResult) -> scm_pb2.RecoverFromRestoreResponse:
    """Build the response with the results of one recovery call, or of its dry run."""
    return scm_pb2.RecoverFromRestoreResponse(
        adopted_container_ids=made.adopted,
        deleted_keys=made.deleted,
        keys=RECOVERED_KEY.messages(made.brought),
    )


def _limit(count: int, count_max: int, where: str) -> None:
    if count > count_max:
        raise malformed(where, f"{count} are more than {count_max}")
