"""The service that answers the requests of Ozone's datanodes and clients, in order.

    send(stream ContainerCommandRequestProto) returns (stream ContainerCommandResponseProto)

If a request fails, its answer has the error as `result`, and the stream continues. Invalid bytes
end the stream. An answer is one message, except for ReadBlock. As in Ozone, a request that is
addressed to another datanode is rejected only if the container is erasure-coded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol

import grpc
import structlog

from agent.store.replica_store import ReplicaStore
from merkle.replica import ID_MAX, ContainerId
from ozone.clients.datanode_messages import BYTES, XCEIVER, DatanodeCommand
from ozone.datanode_server.error_translation import StatusTranslator, StreamAborted, arriving
from ozone.datanode_server.messages import ANSWER, BODIES, parse_request
from ozone.datanode_server.results import result_of
from ozone.messages.datanode_pb2 import Result
from suture.errors import Code, RefusedError, SutureError
from suture.observe.terminal_escape import printable
from suture.wire.server.authorization import PLAINTEXT
from suture.wire.server.blocked_calls import account_of
from suture.wire.server.rate_limit import CallerRateLimiter

SAID_CHARS_MAX: Final = 500  # limit of an error message
NOT_SERVED: Final[Mapping[DatanodeCommand, str]] = {
    DatanodeCommand.UPDATE_CONTAINER: "the metadata of a container is not changed here",
    DatanodeCommand.DELETE_BLOCK: "blocks are deleted by commands of the storage container manager",
    DatanodeCommand.DELETE_CHUNK: "chunks are not deleted one by one, in Ozone neither",
    DatanodeCommand.LIST_CHUNK: "GetBlock tells the chunks of a block",
    DatanodeCommand.COMPACT_CHUNK: "chunks are never rewritten, in Ozone neither",
    DatanodeCommand.PUT_SMALL_FILE: "keys of Ratis pipelines are not written to this datanode",
    DatanodeCommand.GET_SMALL_FILE: "ask GetBlock and ReadChunk",
    DatanodeCommand.STREAM_INIT: "this datanode is in no Ratis pipeline",
    DatanodeCommand.STREAM_WRITE: "this datanode is in no Ratis pipeline",
    DatanodeCommand.STREAM_INIT_WITH_PUT_BLOCK: "this datanode is in no Ratis pipeline",
    DatanodeCommand.FINALIZE_BLOCK: "leases of open files are recovered in Ratis pipelines only",
}
"""Commands of Ozone that an agent does not support, with the reason."""

COMMANDS: Final = {command.value: command for command in DatanodeCommand}

log = structlog.get_logger()

Body = dict[str, Any]
"""Fields of an answer."""


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A valid request and its caller.

    `remaining_s` is the time in seconds until the deadline, or None if it is unknown. `place` is
    the address and port of the caller in gRPC's format. `who` is the name of the caller in its
    token.
    """

    request: Any
    body: Any
    container_id: ContainerId
    remaining_s: float | None
    is_wanted: Callable[[], bool]
    place: str
    who: str


VerifyToken = Callable[[DatanodeCommand, Any, Any], str]
"""Function that checks the token of a request. Its arguments are the command, the request, and the
part of the request for this command. It returns the caller's name for the audit log."""


def accept_any(_command: DatanodeCommand, _request: Any, _body: Any) -> str:
    """Accept a request without verifying a token. Used if the cluster is not secure."""
    return PLAINTEXT


Answering = Callable[[CommandRequest], Body | Iterator[Body]]


class CommandGroup(Protocol):
    """A group of Ozone's datanode commands.

    Each command has a function that executes it (its handler).
    """

    @property
    def commands(self) -> Mapping[DatanodeCommand, Answering]:
        """Handlers by command. A handler returns one answer or yields several."""
        ...


class XceiverService:
    """Implements Ozone's gRPC service `XceiverClientProtocolService`."""

    decoders = encoders = BYTES

    def __init__(
        self,
        groups: Sequence[CommandGroup],
        replicas: ReplicaStore,
        *,
        datanode_id: str,
        calls_per_s_max: int = 0,
        verify: VerifyToken,
    ) -> None:
        """Serve the commands of `groups`.

        `calls_per_s_max` limits the requests of each caller per second. 0 means no limit. `verify`
        raises RefusedError if a request has no valid token.
        """
        self._commands: dict[DatanodeCommand, Answering] = {}
        for group in groups:
            assert not self._commands.keys() & group.commands.keys()
            self._commands |= group.commands
        assert not self._commands.keys() & NOT_SERVED.keys()
        self._replicas = replicas
        self._datanode_id = datanode_id
        self._verify = verify
        self._allowances = CallerRateLimiter(calls_per_s_max) if calls_per_s_max else None

    def send(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer the requests of a stream in order. A request may have several answers."""
        caller = account_of(str(context.peer()))
        with StatusTranslator(context, XCEIVER.full_name):
            for data in arriving(requests):
                request = parse_request(data)
                if not request.HasField("command"):
                    raise RefusedError(Code.MALFORMED_REQUEST, "a request without cmdType")
                with _Answer(request) as failed:
                    for body in self._answers(request, caller, context):
                        yield _answer(request, Result.SUCCESS, body)
                if failed.result is not None:
                    yield _answer(request, failed.result, {"message": failed.message})

    def _answers(self, request: Any, caller: str, context: grpc.ServicerContext) -> Iterator[Body]:
        if self._allowances is not None and not self._allowances.try_acquire(caller):
            raise StreamAborted(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "the caller asks more often than this server allows",
            )
        answering, name = self._carried_out(request)
        body = getattr(request, name)
        who = self._verify(COMMANDS[request.command], request, body)
        asked = CommandRequest(
            request,
            body,
            ContainerId(request.container_id),
            context.time_remaining(),
            context.is_active,
            str(context.peer()),
            who,
        )
        self._check_datanode(asked)
        found = answering(asked)
        if isinstance(found, dict):
            yield found
        else:
            yield from found

    def _carried_out(self, request: Any) -> tuple[Answering, str]:
        """Return the handler of a request, and the name of the request field with the parameters.

        Raise RefusedError if the request is invalid or its command is not supported.
        """
        command = COMMANDS.get(request.command)
        if command is None:
            raise RefusedError(Code.INELIGIBLE, f"command {request.command} is unknown here")
        answering = self._commands.get(command)
        if answering is None:
            why = NOT_SERVED.get(command, "it has nothing to do with it")
            raise RefusedError(
                Code.INELIGIBLE, f"{command.name} is not served by this datanode: {why}"
            )
        for field in ("container_id", "datanode_id"):
            if not request.HasField(field):
                raise RefusedError(Code.MALFORMED_REQUEST, f"{command.name} without {field}")
        name = BODIES[command]
        if not request.HasField(name):
            raise RefusedError(Code.MALFORMED_REQUEST, f"{command.name} without its {name}")
        if not -1 <= request.container_id <= ID_MAX:
            raise RefusedError(Code.MALFORMED_REQUEST, f"container id {request.container_id}")
        return answering, name

    def _check_datanode(self, asked: CommandRequest) -> None:
        """Raise RefusedError if a request for a shard is addressed to another datanode."""
        named = asked.request.datanode_id.decode("utf-8", "replace")
        if named == self._datanode_id:
            return
        if asked.request.command == DatanodeCommand.CREATE_CONTAINER:
            index = asked.body.replica_index
        else:
            try:
                index = self._replicas.replica(asked.container_id).replica_index
            except RefusedError:
                index = _index_of(asked)
        if index > 0:
            raise RefusedError(
                Code.WRONG_DATANODE,
                f"the request is for datanode {printable(named)[:SAID_CHARS_MAX]} and a shard of "
                f"container {asked.container_id}; this is {self._datanode_id}",
            )


def _index_of(asked: CommandRequest) -> int:
    """Return the replica index in a write request to a container that this datanode does not have.

    Return 0 for other requests.
    """
    match asked.request.command:
        case DatanodeCommand.WRITE_CHUNK:
            index: int = asked.body.block_id.replica_index
        case DatanodeCommand.PUT_BLOCK:
            index = asked.body.block.block_id.replica_index
        case _:
            index = 0
    return index


def _answer(request: Any, result: int, body: Body) -> bytes:
    """Encode an answer, which repeats the fields of the request that identify the call."""
    answer = ANSWER(command=request.command, result=result, **body)
    for name in ("trace_id", "client_id", "call_id"):
        if request.HasField(name):
            setattr(answer, name, getattr(request, name))
    data: bytes = answer.SerializeToString()
    return data


class _Answer:
    """Context manager that converts an error of one request to a result code and a message.

    Callers therefore need no `except Exception`.
    """

    def __init__(self, request: Any) -> None:
        self._request = request
        self.result: int | None = None
        self.message = b""

    def __enter__(self) -> "_Answer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is None or not isinstance(error, Exception) or isinstance(error, StreamAborted):
            return False
        if not isinstance(error, SutureError):
            log.error(
                "rpc_failed", method=f"{XCEIVER.full_name} {self._request.command}", exc_info=error
            )
            error = RefusedError(
                Code.CONTAINER_INTERNAL_ERROR, "internal error: see the log of the datanode"
            )
        self.result = result_of(error)
        said = f"{error} ({error.hint})" if error.hint else str(error)
        self.message = said.encode("utf-8", "replace")[:SAID_CHARS_MAX]
        return True
