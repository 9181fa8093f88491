"""Translates Ozone's commands to the agent's commands, or rejects them with a reason. No I/O.

    close, delete, delete_blocks, reconcile,     ->  suture.v1 commands, for the agent's queues
    replicate, reconstruct, refresh,
    set_operational_state
    create_pipeline                              ->  refused with a reason, answered FAILED
    finalize_layout, close_pipeline              ->  no action needed, answered EXECUTED
    reregister                                   ->  handled by the heartbeat worker

Ids, counts and peers in a command are validated like any external input.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from google.protobuf.message import Message

from merkle.replica import ID_MAX
from ozone.scm_link.messages import LOW, PEER, NodeOperationalState, ScmCommandType
from suture.errors import Code
from suture.wire.v1 import scm_pb2

STANDALONE: Final = b"STANDALONE"  # name of the port for clients
REPLICATION: Final = b"REPLICATION"  # name of the port for transfers between datanodes
PEERS_MAX: Final = 64
HOST_BYTES_MAX: Final = 255
PORT_MAX: Final = 65_535
INDEX_MAX: Final = 2**32 - 1  # maximum in Suture's protocol; larger than any replica index
INT64_END: Final = 2**63
NEVER_REACHED: Final = (
    ID_MAX  # as a commit id: Ozone closes to CLOSED only by force, otherwise to QUASI_CLOSED
)
REFUSED: Final[Mapping[ScmCommandType, str]] = {
    ScmCommandType.CREATE_PIPELINE: "this datanode joins no pipeline of Ratis: it holds closed and "
    "erasure-coded containers",
}
"""Commands that an agent does not support, with the text of the answer."""
DONE: Final = frozenset({ScmCommandType.CLOSE_PIPELINE, ScmCommandType.FINALIZE_LAYOUT})
"""Commands that need no action: an agent is in no pipeline and has no Ozone layout to finalise."""


@dataclass(frozen=True, slots=True)
class TranslatedCommand:
    """A command for the agent's queues.

    `replica_index` is the index of the replica that the command is for. 0 means any replica.
    """

    command: scm_pb2.Command
    replica_index: int = 0


@dataclass(frozen=True, slots=True)
class ImmediateAnswer:
    """The answer to a command that is not queued.

    If the command is rejected, `why` and `code` have the reason. `why` is "" if the command needs
    no action.
    """

    order: ScmCommandType
    command_id: int
    container_id: int
    why: str = ""
    code: Code = Code.INELIGIBLE


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """A command that this release does not know, or that is empty."""

    number: int


@dataclass(frozen=True, slots=True)
class Reregister:
    """A command of the SCM that requests a new registration of this datanode."""


Understood = TranslatedCommand | ImmediateAnswer | UnknownCommand | Reregister


class _MalformedCommand(ValueError):
    """Raised for an invalid command. The text names the fault."""


def prefer_host_names(message: Any) -> None:
    """Remove the IP address of each datanode in a command if its host name is known.

    Peers are then called by name (hdds.datanode.use.datanode.hostname).
    """
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for part in [value] if isinstance(value, Message) else value:
            if isinstance(part, PEER):
                if part.host_name:
                    part.ClearField("ip_address")
            else:
                prefer_host_names(part)


def translate_command(command: Any, now_ms: int) -> Understood:
    """Translate a command of Ozone's SCM.

    `now_ms` is the wall clock time, which is compared with the deadline of the command.
    """
    try:
        order = ScmCommandType(command.type)
    except ValueError:
        return UnknownCommand(command.type)
    if order is ScmCommandType.REREGISTER:
        return Reregister()
    field = order.name.lower()
    part = getattr(command, field)
    named = _named(part)
    command_id = _positive(getattr(part, "command_id", 0) or named)
    if not command.HasField(field):
        why = "the command says nothing of what to do"
        return ImmediateAnswer(order, 0, 0, why, Code.MALFORMED_REQUEST)
    if order in REFUSED:
        return ImmediateAnswer(order, command_id, named, REFUSED[order])
    if order in DONE:
        return ImmediateAnswer(order, command_id, 0)
    if 0 < command.deadline_ms <= now_ms:
        return ImmediateAnswer(order, command_id, named, "came too late", Code.DEADLINE_PASSED)
    ours = scm_pb2.Command(
        command_id=command_id,
        term=max(0, command.term),
        lifetime_ms=command.deadline_ms - now_ms if command.deadline_ms > 0 else 0,
        priority=scm_pb2.LOW if getattr(part, "priority", 0) == LOW else scm_pb2.NORMAL,
    )
    try:
        _fill(ours, order, part)
    except ValueError as fault:  # also raised by protobuf for a number that does not fit
        return ImmediateAnswer(order, ours.command_id, named, str(fault), Code.MALFORMED_REQUEST)
    is_of_ours = order is ScmCommandType.DELETE or bool(ours.replicate.target.address)
    return TranslatedCommand(ours, max(0, part.replica_index) if is_of_ours else 0)


def _fill(ours: scm_pb2.Command, order: ScmCommandType, part: Any) -> None:
    match order:
        case ScmCommandType.CLOSE:
            ours.close.container_id, ours.close.force = _container(part), part.force
            ours.close.bcsid = 0 if part.force else NEVER_REACHED
        case ScmCommandType.DELETE:
            ours.delete.container_id, ours.delete.force = _container(part), part.force
        case ScmCommandType.DELETE_BLOCKS:
            _fill_transactions(ours.delete_blocks, part)
        case ScmCommandType.SET_OPERATIONAL_STATE:
            if part.state not in set(NodeOperationalState):
                raise _MalformedCommand(f"there is no operational state {part.state}")
            ours.set_operational_state.op_state = NodeOperationalState(part.state).name
            expiry_s = max(0, part.expiry_s)
            ours.set_operational_state.op_expiry_ms = min(expiry_s, INT64_END // 1000) * 1000
        case ScmCommandType.REFRESH_VOLUME_USAGE:
            ours.refresh_volume_usage.SetInParent()
        case ScmCommandType.RECONCILE:
            ours.reconcile.container_id = _container(part)
            if not 1 <= len(part.peers) <= PEERS_MAX:
                raise _MalformedCommand(f"{len(part.peers)} peers, possible are 1..{PEERS_MAX}")
            for peer in part.peers:
                ours.reconcile.peers.add(**_endpoint(peer, STANDALONE))
        case ScmCommandType.REPLICATE:
            _fill_copy(ours.replicate, part)
        case ScmCommandType.RECONSTRUCT:
            _fill_reconstruction(ours.reconstruct, part)
        case _:
            raise AssertionError(f"{order} is answered at once")


def _fill_copy(ours: scm_pb2.ReplicateCommand, part: Any) -> None:
    """Set the fields of the agent's copy command.

    These are the target of a push, or the sources of a fetch.
    """
    ours.container_id = _container(part)
    if part.HasField("target"):
        named = _endpoint(part.target, REPLICATION)
        ours.target.datanode_id, ours.target.address = named["datanode_id"], named["address"]
        return
    if not 1 <= len(part.sources) <= PEERS_MAX:
        raise _MalformedCommand(
            f"no target, and {len(part.sources)} sources, possible are 1..{PEERS_MAX}"
        )
    ours.replica_index = min(max(0, part.replica_index), INDEX_MAX)
    for source in part.sources:
        ours.sources.add(**_endpoint(source, REPLICATION))


def _fill_reconstruction(ours: scm_pb2.ReconstructCommand, part: Any) -> None:
    """Set the fields of the agent's reconstruction command.

    The fields are the erasure code, the remaining shards, and the targets of the lost shards. The
    reconstruction itself checks later if enough shards remain.
    """
    ours.container_id = _container(part)
    count = len(part.sources) + len(part.targets)
    if count > PEERS_MAX or len(part.missing) != len(part.targets):
        raise _MalformedCommand(
            f"{len(part.missing)} shards for {len(part.targets)} targets from "
            f"{len(part.sources)} sources"
        )
    coding = part.coding
    if min(coding.data, coding.parity, coding.cell_bytes) < 1:
        raise _MalformedCommand("the command names no erasure code")
    ours.scheme.codec = coding.codec.decode("ascii", "replace").lower()
    ours.scheme.data, ours.scheme.parity = coding.data, coding.parity
    ours.scheme.cell_bytes = coding.cell_bytes
    for source in part.sources:
        index = max(0, source.replica_index)
        ours.sources.add(datanode=_endpoint(source.peer, STANDALONE), replica_index=index)
    for target, index in zip(part.targets, part.missing, strict=True):
        ours.targets.add(datanode=_endpoint(target, STANDALONE), replica_index=index)


def _fill_transactions(ours: scm_pb2.DeleteBlocksCommand, part: Any) -> None:
    ours.SetInParent()
    for transaction in part.transactions:
        numbers = (transaction.transaction_id, transaction.container_id, *transaction.local_ids)
        if any(number < 0 for number in numbers):
            raise _MalformedCommand(f"transaction {transaction.transaction_id} has negative ids")
        ours.transactions.add(
            transaction_id=transaction.transaction_id,
            container_id=transaction.container_id,
            local_ids=transaction.local_ids,
        )


def _container(part: Any) -> int:
    if not 1 <= part.container_id <= ID_MAX:
        raise _MalformedCommand(f"there is no container {part.container_id}")
    return int(part.container_id)


def _endpoint(peer: Any, port: bytes) -> dict[str, str]:
    """Return the id and the address of a peer. `port` is the name of the port to use."""
    host = peer.ip_address or peer.host_name
    ports = [one.value for one in peer.ports if one.name == port]
    if not host.isascii() or not 0 < len(host) <= HOST_BYTES_MAX or not host.decode().isprintable():
        raise _MalformedCommand("a peer has no address")
    if not ports or not 0 < ports[0] <= PORT_MAX:
        raise _MalformedCommand(f"a peer has no port {port.decode()}")
    name = host.decode()
    address = f"[{name}]:{ports[0]}" if ":" in name else f"{name}:{ports[0]}"
    return {"datanode_id": _datanode_id(peer), "address": address}


def _datanode_id(peer: Any) -> str:
    try:
        return str(UUID(peer.uuid.decode("ascii")))
    except (ValueError, UnicodeDecodeError):
        pass
    if not peer.HasField("uuid128"):
        raise _MalformedCommand("a peer has no id")
    halves = (peer.uuid128.most % 2**64, peer.uuid128.least % 2**64)
    return str(UUID(int=halves[0] << 64 | halves[1]))


def _named(part: Any) -> int:
    """Return the container id in a command, or 0 if it has no valid id."""
    container_id = getattr(part, "container_id", 0)
    return container_id if 1 <= container_id <= ID_MAX else 0


def _positive(number: int) -> int:
    """Return the id of a command as an unsigned 64-bit number, as the agent uses it."""
    return number % 2**64
