"""Converts messages of clients and operators from protobuf to values, and checks them.

No other module checks these fields. Each function raises RefusedError(MALFORMED_REQUEST) if a field
is invalid, before anything changes. The error names the field.
"""

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, TypeVar

from health.tables.snapshot_columns import ROWS_PER_CONTAINER_MAX
from merkle.replica import BLOCK_BYTES_MAX, ID_MAX
from scm.administration.decommission import REQUESTED_STATES, OpStateRequest
from scm.administration.decommission_rules import DepartureCheck
from scm.administration.run_time_control import SettingRequest
from scm.replication.reconcile.plan_check import ACTIONS, PlanReplica, PlanRow
from scm.state.entities import CommandKind, ControlKind, Key, KeyBlock, OpState, WorkKind
from suture.config.week_windows import parse_week_windows
from suture.ec.scheme import parse_scheme
from suture.wire.mapping.bounds import KEY_BYTES_MAX, SIZES_MAX
from suture.wire.mapping.codec import (
    malformed,
    parse_bcsid,
    parse_block_id,
    parse_container_id,
    parse_datanode_id,
    parse_int,
    parse_state,
)
from suture.wire.v1 import scm_pb2

NAME_CHARS_MAX: Final = 128  # ids of datanodes, volumes, sessions
TEXT_CHARS_MAX: Final = 1_024  # messages; longer ones are cut
KEYS_MAX: Final = 10_000  # keys per CommitKey
IDS_MAX: Final = 10_000  # containers or commands per call
PLAN_ROWS_MAX: Final = 10_000
PEERS_KEPT_MAX: Final = 64  # of one reconcile's outcome
DETAILED_KINDS: Final = ("reconcile", "replicate", "delete_blocks", "reconstruct")
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")

REQUESTED_CONTROLS: Final = (
    ControlKind.PAUSE,
    ControlKind.WINDOWS,
    ControlKind.NODE_RATE,
    ControlKind.CLUSTER_RATE,
)
REQUESTED_WORKS: Final = tuple(work for work in WorkKind if work is not WorkKind.ALL)
LIMITED_WORKS: Final = frozenset({WorkKind.COPIES, WorkKind.RECONCILES})

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
V = TypeVar("V")


def parse_each(
    items: Sequence[T], where: str, parse: Callable[[T, str], V], *, count_max: int = IDS_MAX
) -> list[V]:
    """Convert each item of a list with `parse`, and return the results.

    Raise RefusedError if the list has more than `count_max` items.
    """
    parse_count(items, where, count_max)
    return [parse(item, f"{where}[{i}]") for i, item in enumerate(items)]


def parse_named(
    items: Sequence[T], where: str, parse: Callable[[T, str], V], *, count_max: int = IDS_MAX
) -> list[V]:
    """Convert each item of a list with `parse`, and return the results without duplicates.

    Raise RefusedError if the list is empty or has more than `count_max` items.
    """
    if not items:
        raise malformed(where, "is empty")
    return list(dict.fromkeys(parse_each(items, where, parse, count_max=count_max)))


def op_state_from(value: str, where: str) -> OpState:
    """Return the operational state with this name. Raise RefusedError if there is none."""
    if value not in OpState.__members__:
        raise malformed(where, f"{cut(value, 40)!r} is none of {', '.join(OpState)}")
    return OpState(value)


def node_states_from(message: scm_pb2.SetOperationalStatesRequest) -> OpStateRequest:
    """Convert a request to change the operational state of datanodes from protobuf."""
    datanode_ids = node_ids_from(message.datanode_ids)
    op_state = op_state_from(message.op_state, "op_state")
    if op_state not in REQUESTED_STATES:
        raise malformed("op_state", f"{op_state} follows by itself, ask for the way there")
    if message.op_expiry_ms and op_state is not OpState.ENTERING_MAINTENANCE:
        raise malformed("op_expiry_ms", "only maintenance has an end")
    return OpStateRequest(
        datanode_ids=tuple(datanode_ids),
        op_state=op_state,
        op_expiry_ms=parse_number(message.op_expiry_ms, "op_expiry_ms"),
        is_forced=message.force,
        skipped_checks=parse_each(
            message.skipped_checks,
            "skipped_checks",
            lambda word, where: _one_of(word, where, tuple(DepartureCheck)),
        ),
        is_dry_run=message.dry_run,
    )


def setting_from(message: scm_pb2.ChangeSettingsRequest) -> SettingRequest:
    """Convert a request to set or remove run-time settings from protobuf."""
    control = _one_of(message.control, "control", REQUESTED_CONTROLS)
    works = parse_named(
        message.works, "works", lambda word, where: _one_of(word, where, REQUESTED_WORKS)
    )
    rack = parse_name(message.rack, "rack") if message.rack else ""
    if rack and control is not ControlKind.PAUSE:
        raise malformed("rack", "only a pause can concern one rack")
    is_limit = control is not ControlKind.PAUSE
    if is_limit and not set(works) <= LIMITED_WORKS:
        raise malformed("works", f"only {' and '.join(sorted(LIMITED_WORKS))} can be limited")
    if is_limit and not message.remove:
        _check_value(control, message.value)
    return SettingRequest(
        control,
        tuple(works),
        rack,
        message.value if is_limit else "",
        parse_number(message.duration_ms, "duration_ms"),
        is_removal=message.remove,
    )


def _check_value(control: ControlKind, value: str) -> None:
    """Raise RefusedError if a value is invalid for this kind of setting."""
    if control is not ControlKind.WINDOWS:
        if not (value.isascii() and value.isdigit() and 0 < int(value[:NAME_CHARS_MAX]) <= ID_MAX):
            raise malformed("value", "expected a positive number of bytes per second")
        return
    try:
        parse_week_windows(value)
    except ValueError as error:
        raise malformed("value", str(error)) from None


def _one_of(value: str, where: str, allowed: Sequence[E]) -> E:
    """Return the member of `allowed` that equals `value`. Raise RefusedError if there is none."""
    for word in allowed:
        if word == value:
            return word
    raise malformed(where, f"{cut(value, 40)!r} is none of {', '.join(allowed)}")


def node_ids_from(names: Sequence[str]) -> list[str]:
    """Return the datanode ids of a request, without duplicates."""
    return parse_named(names, "datanode_ids", parse_name)


def sizes_from(message: scm_pb2.AllocateBlocksRequest) -> list[int]:
    """Return the sizes in bytes of the blocks that a writer requests."""
    if not message.sizes:
        raise malformed("sizes", "no block is asked for")
    return parse_each(message.sizes, "sizes", parse_number, count_max=SIZES_MAX)


def new_keys_from(message: scm_pb2.AllocateBlocksRequest) -> list[str]:
    """Return the names of the keys for the requested blocks. The list may be empty."""
    return parse_each(message.keys, "keys", parse_key, count_max=KEYS_MAX)


def scheme_from(message: scm_pb2.AllocateBlocksRequest | scm_pb2.RecoveredContainer) -> str:
    """Return the full name of a container's erasure code.

    Return an empty string if there is none.
    """
    return str(parse_scheme(parse_name(message.scheme, "scheme"))) if message.scheme else ""


def client_id_from(value: str) -> str:
    """Return the session id of a writer."""
    return parse_name(value, "client_id")


def keys_from(messages: Sequence[scm_pb2.KeyInfo]) -> list[Key]:
    """Convert the keys of a commit request from protobuf.

    Raise RefusedError if a name or a block occurs twice.
    """
    keys = parse_each(messages, "keys", key_from, count_max=KEYS_MAX)
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
    """Return the replicas to which a writer failed to write.

    Each is a pair of a container id and a datanode id.
    """
    return parse_each(messages, "failed", _failed_replica)


def _failed_replica(message: scm_pb2.FailedReplica, where: str) -> tuple[int, str]:
    container_id = parse_container_id(message.container_id, f"{where}.container_id")
    return container_id, parse_name(message.datanode_id, f"{where}.datanode_id")


def parse_key(name: str, where: str) -> str:
    """Return the name of a key if it is valid.

    Raise RefusedError if the name is empty, too long, or contains control characters.
    """
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
    """Return the container ids of a request, without duplicates."""
    return list(parse_named(ids, where, parse_container_id))


def command_ids_from(ids: Sequence[int]) -> list[int]:
    """Return the command ids of a request. The list may be empty."""
    return parse_each(ids, "command_ids", parse_command_id)


def before_id_from(message: scm_pb2.ListOutcomesRequest) -> int:
    """Return the id below which a client requests the newest outcomes.

    0 means that there is no limit.
    """
    return parse_number(message.before_command_id, "before_command_id")


def plan_rows_from(message: scm_pb2.ApplyPlanRequest) -> list[PlanRow]:
    """Convert the rows of a plan from protobuf.

    Raise RefusedError if the snapshot id or the run id is invalid.
    """
    parse_name(message.snapshot_id, "snapshot_id")
    parse_name(message.run_id, "run_id")
    return parse_each(message.rows, "rows", _plan_row, count_max=PLAN_ROWS_MAX)


def doomed_keys_from(message: scm_pb2.DeleteKeysRequest) -> list[str]:
    """Return the names of the keys to delete, without duplicates."""
    return parse_named(message.keys, "keys", parse_key, count_max=KEYS_MAX)


def fingerprints_from(worlds: Sequence[int], shown: Sequence[object]) -> list[int]:
    """Return the fingerprints that an earlier dry run returned, if the request has any.

    Raise RefusedError unless there is one fingerprint for each item of `shown`, or none at all.
    """
    if worlds and len(worlds) != len(shown):
        raise malformed("worlds", f"{len(worlds)} for {len(shown)} containers, rows or keys")
    return list(worlds)


def node_order_from(message: scm_pb2.CommandNodesRequest) -> tuple[list[str], CommandKind]:
    """Return the datanode ids and the kind of a command that concerns no replica."""
    known = (CommandKind.REFRESH_VOLUME_USAGE, CommandKind.REREGISTER)
    if message.type not in known:
        raise malformed("type", f"{cut(message.type, 40)!r} is none of {', '.join(known)}")
    ids = parse_each(message.datanode_ids, "datanode_ids", parse_name)
    return ids, CommandKind(message.type)


def parse_id(value: str, where: str) -> str:
    """Return the id of a datanode or volume. Raise RefusedError unless it is a plain name.

    Agents accept no other form. The length is limited, because keys of the state contain the id.
    """
    return parse_datanode_id(parse_name(value, where), where)


def parse_name(value: str, where: str) -> str:
    """Return an id or word if it is valid.

    Raise RefusedError if it is empty, too long, or contains control characters.
    """
    if not value:
        raise malformed(where, "is empty")
    if len(value) > NAME_CHARS_MAX:
        raise malformed(where, f"{len(value)} characters are more than {NAME_CHARS_MAX}")
    _refuse_control_characters(value, where)
    return value


def parse_number(value: int, where: str) -> int:
    """Return a number if it is between 0 and ID_MAX, so that the state can store it.

    0 often means that the field is unset.
    """
    return parse_int(value, where, low=0, high=ID_MAX)


def parse_command_id(value: int, where: str) -> int:
    """Return the id of a command. Raise RefusedError if it is 0 or higher than ID_MAX."""
    return parse_int(value, where, low=1, high=ID_MAX)


def parse_address(value: str, where: str) -> str:
    """Return an address if it has the form `host:port`. Raise RefusedError otherwise."""
    host, colon, port = parse_name(value, where).rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and 1 <= int(port) <= 65_535):
        raise malformed(where, f"{value!r} is not host:port")
    return value


def cut(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Return a text for display, shortened to at most `chars_max` characters."""
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def parse_count(items: Sequence[object], where: str, count_max: int) -> None:
    """Raise RefusedError if there are more than `count_max` items."""
    if len(items) > count_max:
        raise malformed(where, f"{len(items)} are more than {count_max} in one call")


def _refuse_control_characters(value: str, where: str) -> None:
    found = CONTROL.search(value)
    if found is not None:
        raise malformed(where, f"contains the control character {ord(found[0]):#04x}")


def key_from(message: scm_pb2.KeyInfo, where: str) -> Key:
    """Convert a key from protobuf.

    Raise RefusedError if the name is invalid, or if the lengths of the blocks do not add up to the
    size of the key.
    """
    blocks = tuple(
        _key_block(block, f"{where}.blocks[{i}]") for i, block in enumerate(message.blocks)
    )
    length_bytes = sum(block.length_bytes for block in blocks)
    if message.size != length_bytes:
        raise malformed(
            f"{where}.size", f"{message.size}, but its blocks have {length_bytes} bytes"
        )
    return Key(
        name=parse_key(message.key, f"{where}.key"),
        size_bytes=message.size,
        created_at_ms=parse_number(message.created_at_ms, f"{where}.created_at_ms"),
        blocks=blocks,
    )


def _key_block(message: scm_pb2.BlockLocation, where: str) -> KeyBlock:
    block_id = message.block_id
    return KeyBlock(
        container_id=parse_container_id(block_id.container_id, f"{where}.container_id"),
        local_id=parse_block_id(block_id.local_id, f"{where}.local_id"),
        bcsid=parse_bcsid(block_id.bcsid, f"{where}.bcsid"),
        length_bytes=parse_int(message.length, f"{where}.length", low=0, high=BLOCK_BYTES_MAX),
    )


def _plan_row(message: scm_pb2.PlanRow, where: str) -> PlanRow:
    if message.action not in ACTIONS:
        raise malformed(
            f"{where}.action",
            f"{cut(message.action, 40)!r} is unknown, known are {', '.join(ACTIONS)}",
        )
    replicas = parse_each(
        message.replicas, f"{where}.replicas", _plan_replica, count_max=ROWS_PER_CONTAINER_MAX
    )
    return PlanRow(
        container_id=parse_container_id(message.container_id, f"{where}.container_id"),
        replicas=tuple(replicas),
        reason=cut(message.reason),
        action=message.action,
        sources=_names(message.sources, f"{where}.sources"),
        targets=_names(message.targets, f"{where}.targets"),
        copies=message.copies,
        is_forced=message.forced,
        expires_at_ms=message.expires_at_ms,
    )


def _plan_replica(message: scm_pb2.PlanReplica, where: str) -> PlanReplica:
    return PlanReplica(
        datanode_id=parse_name(message.datanode_id, f"{where}.datanode_id"),
        state=parse_state(message.state, f"{where}.state"),
        root=message.root if message.HasField("root") else None,
    )


def _names(values: Sequence[str], where: str) -> tuple[str, ...]:
    return tuple(parse_each(values, where, parse_name, count_max=ROWS_PER_CONTAINER_MAX))
