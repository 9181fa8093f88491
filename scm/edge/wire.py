"""Converts protobuf to the control plane's values. Every incoming field is checked only here.

Each function raises RefusedError(MALFORMED_REQUEST) naming the field, before anything changes.
"""

import re
from collections.abc import Sequence
from typing import Final

from agent.ec.scheme import parse_scheme
from agent.errors import Code, RefusedError
from agent.rpc.v1 import scm_pb2
from agent.rpc.wire.bounds import KEY_BYTES_MAX, SIZES_MAX
from agent.rpc.wire.codec import (
    malformed,
    parse_bcsid,
    parse_block_id,
    parse_container_id,
    parse_datanode_id,
    parse_int,
    parse_state,
)
from health.tables.snapshot_columns import ROWS_PER_CONTAINER_MAX
from merkle.replica import BLOCK_BYTES_MAX, ID_MAX
from scm.administration.decommission import REQUESTED_STATES, OpStateRequest
from scm.replication.reconciling.plan_check import ACTIONS, PlanReplica, PlanRow
from scm.state.facts import CommandKind, Key, KeyBlock, OpState

NAME_CHARS_MAX: Final = 128  # ids of datanodes, volumes, sessions
TEXT_CHARS_MAX: Final = 1_024  # messages; longer ones are cut
KEYS_MAX: Final = 10_000  # keys per CommitKey
IDS_MAX: Final = 10_000  # containers or commands per call
PLAN_ROWS_MAX: Final = 10_000
PEERS_KEPT_MAX: Final = 64  # of one reconcile's outcome
DETAILED_KINDS: Final = ("reconcile", "replicate", "delete_blocks", "reconstruct")
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def op_state_from(value: str, where: str) -> OpState:
    """Check an operational state."""
    if value not in OpState.__members__:
        raise malformed(where, f"{cut(value, 40)!r} is none of {', '.join(OpState)}")
    return OpState(value)


def node_states_from(message: scm_pb2.SetOperationalStatesRequest) -> OpStateRequest:
    """Check an operator's request about operational states."""
    parse_count(message.datanode_ids, "datanode_ids", IDS_MAX)
    if not message.datanode_ids:
        raise malformed("datanode_ids", "is empty")
    op_state = op_state_from(message.op_state, "op_state")
    if op_state not in REQUESTED_STATES:
        raise malformed("op_state", f"{op_state} follows by itself, ask for the way there")
    if message.op_expiry_ms and op_state is not OpState.ENTERING_MAINTENANCE:
        raise malformed("op_expiry_ms", "only maintenance has an end")
    names = (parse_name(v, f"datanode_ids[{i}]") for i, v in enumerate(message.datanode_ids))
    return OpStateRequest(
        datanode_ids=tuple(dict.fromkeys(names)),
        op_state=op_state,
        op_expiry_ms=parse_int(message.op_expiry_ms, "op_expiry_ms", low=0, high=ID_MAX),
        is_forced=message.force,
        is_dry_run=message.dry_run,
    )


def node_ids_from(names: Sequence[str]) -> list[str]:
    """Check datanode ids; return each once."""
    parse_count(names, "datanode_ids", IDS_MAX)
    if not names:
        raise malformed("datanode_ids", "is empty")
    checked = (parse_name(name, f"datanode_ids[{i}]") for i, name in enumerate(names))
    return list(dict.fromkeys(checked))


def sizes_from(message: scm_pb2.AllocateBlocksRequest) -> list[int]:
    """Check the sizes of blocks to promise."""
    parse_count(message.sizes, "sizes", SIZES_MAX)
    if not message.sizes:
        raise malformed("sizes", "no block is asked for")
    return [
        parse_int(size, f"sizes[{i}]", low=0, high=ID_MAX) for i, size in enumerate(message.sizes)
    ]


def new_keys_from(message: scm_pb2.AllocateBlocksRequest) -> list[str]:
    """Check the names of the new keys that blocks are for; there may be none."""
    parse_count(message.keys, "keys", KEYS_MAX)
    return [parse_key(name, f"keys[{i}]") for i, name in enumerate(message.keys)]


def scheme_from(message: scm_pb2.AllocateBlocksRequest | scm_pb2.RecoveredContainer) -> str:
    """Check the erasure code of new containers; return its full name, or an empty string."""
    return str(parse_scheme(parse_name(message.scheme, "scheme"))) if message.scheme else ""


def client_id_from(value: str) -> str:
    """Check a writer's session id."""
    return parse_name(value, "client_id")


def keys_from(messages: Sequence[scm_pb2.KeyInfo]) -> list[Key]:
    """Check keys to commit: names, sizes, and that no block occurs twice."""
    parse_count(messages, "keys", KEYS_MAX)
    keys = [key_from(message, f"keys[{i}]") for i, message in enumerate(messages)]
    names: set[str] = set()
    blocks: set[tuple[int, int]] = set()
    for i, key in enumerate(keys):
        if key.name in names:
            raise malformed(f"keys[{i}].key", f"{key.name} is there twice")
        names.add(key.name)
        for block in key.blocks:
            if (block.container_id, block.local_id) in blocks:
                raise malformed(f"keys[{i}].blocks", f"block {block.local_id} is there twice")
            blocks.add((block.container_id, block.local_id))
    return keys


def failed_from(messages: Sequence[scm_pb2.FailedReplica]) -> list[tuple[int, str]]:
    """Check the replicas a writer left behind."""
    parse_count(messages, "failed", IDS_MAX)
    return [
        (
            parse_container_id(message.container_id, f"failed[{i}].container_id"),
            parse_name(message.datanode_id, f"failed[{i}].datanode_id"),
        )
        for i, message in enumerate(messages)
    ]


def parse_key(name: str, where: str) -> str:
    """Return a valid key name: not empty, not too long, without control characters."""
    if not name:
        raise malformed(where, "is empty")
    size_bytes = len(name.encode())
    if size_bytes > KEY_BYTES_MAX:
        raise malformed(
            where,
            f"{size_bytes} bytes are more than {KEY_BYTES_MAX}; it begins with {cut(name, 40)!r}",
        )
    _refuse_control_characters(name, where)
    return name


def container_ids_from(ids: Sequence[int], where: str = "container_ids") -> list[int]:
    """Check a list of container ids; drop repetitions."""
    parse_count(ids, where, IDS_MAX)
    if not ids:
        raise malformed(where, "is empty")
    checked = (parse_container_id(number, f"{where}[{i}]") for i, number in enumerate(ids))
    return list(dict.fromkeys(checked))


def command_ids_from(ids: Sequence[int]) -> list[int]:
    """Check a list of command ids; it may be empty."""
    parse_count(ids, "command_ids", IDS_MAX)
    return [
        parse_int(number, f"command_ids[{i}]", low=1, high=ID_MAX) for i, number in enumerate(ids)
    ]


def before_id_from(message: scm_pb2.ListOutcomesRequest) -> int:
    """Check the command id before which the newest are requested; 0 = all."""
    return parse_int(message.before_command_id, "before_command_id", low=0, high=ID_MAX)


def plan_rows_from(message: scm_pb2.ApplyPlanRequest) -> list[PlanRow]:
    """Check a plan: its source and every row."""
    parse_name(message.snapshot_id, "snapshot_id")
    parse_name(message.run_id, "run_id")
    parse_count(message.rows, "rows", PLAN_ROWS_MAX)
    return [_plan_row(row, f"rows[{i}]") for i, row in enumerate(message.rows)]


def doomed_keys_from(message: scm_pb2.DeleteKeysRequest) -> list[str]:
    """Check the names of keys to delete; drop repetitions."""
    parse_count(message.keys, "keys", KEYS_MAX)
    if not message.keys:
        raise malformed("keys", "is empty")
    return list(dict.fromkeys(parse_key(k, f"keys[{i}]") for i, k in enumerate(message.keys)))


def worlds_from(worlds: Sequence[int], shown: Sequence[object]) -> list[int]:
    """Check the fingerprints of a dry run: none, or one for each container or row it showed."""
    if worlds and len(worlds) != len(shown):
        raise malformed("worlds", f"{len(worlds)} for {len(shown)} containers, rows or keys")
    return list(worlds)


def node_order_from(message: scm_pb2.OrderNodesRequest) -> tuple[list[str], CommandKind]:
    """Check an order to datanodes themselves."""
    parse_count(message.datanode_ids, "datanode_ids", IDS_MAX)
    known = (CommandKind.REFRESH_VOLUME_USAGE, CommandKind.REREGISTER)
    if message.type not in known:
        raise malformed("type", f"{cut(message.type, 40)!r} is none of {', '.join(known)}")
    ids = [parse_name(value, f"datanode_ids[{i}]") for i, value in enumerate(message.datanode_ids)]
    return ids, CommandKind(message.type)


def parse_id(value: str, where: str) -> str:
    """Return the id of a datanode or volume if it is a plain name, the only form that agents
    accept: keys of the state contain it, and their length is limited.
    """
    return parse_datanode_id(parse_name(value, where), where)


def parse_name(value: str, where: str) -> str:
    """Return an id or word that is not empty, not long, and printable."""
    if not value:
        raise malformed(where, "is empty")
    if len(value) > NAME_CHARS_MAX:
        raise malformed(where, f"{len(value)} characters are more than {NAME_CHARS_MAX}")
    _refuse_control_characters(value, where)
    return value


def parse_address(value: str, where: str) -> str:
    """Return a valid `host:port`."""
    host, colon, port = parse_name(value, where).rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and 1 <= int(port) <= 65_535):
        raise malformed(where, f"{value!r} is not host:port")
    return value


def cut(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Return a display text, cut to a maximum length."""
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def parse_count(items: Sequence[object], where: str, count_max: int) -> None:
    """Raise RefusedError for more items than a call may have."""
    if len(items) > count_max:
        raise malformed(where, f"{len(items)} are more than {count_max} in one call")


def _refuse_control_characters(value: str, where: str) -> None:
    found = CONTROL.search(value)
    if found is not None:
        raise malformed(where, f"contains the control character {ord(found[0]):#04x}")


def key_from(message: scm_pb2.KeyInfo, where: str) -> Key:
    """Check a key: its name, and that its blocks add up to its bytes."""
    blocks = tuple(
        KeyBlock(
            container_id=parse_container_id(
                block.block_id.container_id, f"{where}.blocks[{i}].container_id"
            ),
            local_id=parse_block_id(block.block_id.local_id, f"{where}.blocks[{i}].local_id"),
            bcsid=parse_bcsid(block.block_id.bcsid, f"{where}.blocks[{i}].bcsid"),
            length_bytes=parse_int(
                block.length, f"{where}.blocks[{i}].length", low=0, high=BLOCK_BYTES_MAX
            ),
        )
        for i, block in enumerate(message.blocks)
    )
    length_bytes = sum(block.length_bytes for block in blocks)
    if message.size != length_bytes:
        raise malformed(
            f"{where}.size", f"{message.size}, but its blocks have {length_bytes} bytes"
        )
    return Key(
        name=parse_key(message.key, f"{where}.key"),
        size_bytes=message.size,
        created_at_ms=parse_int(
            message.created_at_ms, f"{where}.created_at_ms", low=0, high=ID_MAX
        ),
        blocks=blocks,
    )


def _plan_row(message: scm_pb2.PlanRow, where: str) -> PlanRow:
    if message.action not in ACTIONS:
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            f"{where}.action: {cut(message.action, 40)!r} is unknown, known are "
            + ", ".join(ACTIONS),
        )
    parse_count(message.replicas, f"{where}.replicas", ROWS_PER_CONTAINER_MAX)
    return PlanRow(
        container_id=parse_container_id(message.container_id, f"{where}.container_id"),
        replicas=tuple(
            PlanReplica(
                datanode_id=parse_name(replica.datanode_id, f"{where}.replicas[{i}].datanode_id"),
                state=parse_state(replica.state, f"{where}.replicas[{i}].state"),
                root=replica.root if replica.HasField("root") else None,
            )
            for i, replica in enumerate(message.replicas)
        ),
        reason=cut(message.reason),
        action=message.action,
        sources=_names(message.sources, f"{where}.sources"),
        targets=_names(message.targets, f"{where}.targets"),
        copies=message.copies,
        is_forced=message.forced,
        expires_at_ms=message.expires_at_ms,
    )


def _names(values: Sequence[str], where: str) -> tuple[str, ...]:
    parse_count(values, where, ROWS_PER_CONTAINER_MAX)
    return tuple(parse_name(value, f"{where}[{i}]") for i, value in enumerate(values))
