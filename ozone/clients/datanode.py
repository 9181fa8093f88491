"""A client of Ozone's datanodes.

The client has one gRPC channel, and a stream for each series of requests. It sends several requests
before it reads their answers, which arrive in the order of the requests.

After each failed request, Ozone scans the complete container. Therefore, the client sends no
request that will fail, and does not repeat a failed request. The client does not trust answers: it
matches each answer with its request, limits the size of answers, and decodes rows with the decoder
for rows on disk. A secure cluster requires TLS and a token for each request (`DatanodeAccess`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Self

import grpc

from merkle.damaged_data import DamagedData
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId
from ozone.clients.datanode_messages import (
    ANSWER,
    BYTES,
    REQUEST,
    STATES,
    XCEIVER,
    DatanodeCommand,
    result_name,
)
from ozone.disk.blockrow import decode_stored
from ozone.disk.encoding import decode_noted
from ozone.disk.messages import BLOCK_DATA, parse
from ozone.disk.unsupported_format import UnsupportedFormat
from ozone.messages.datanode_pb2 import Result
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.observe.terminal_escape import printable
from suture.wire.clients.channel import NO_PROXY, call_with_retry
from suture.wire.mapping.errors import DETAIL_KEY, error_from
from suture.wire.mapping.rpc_services import Stub

MESSAGE_BYTES_MAX: Final = 32 * 1024**2  # Ozone's own limit, for requests and answers
PIECE_BYTES: Final = 4 * 1024**2  # bytes of a chunk per request
AHEAD_MAX: Final = 8  # requests in flight: 32 MiB of pieces
REQUESTS_MAX: Final = 256  # requests per stream, because a stream has one deadline
PAGE_BLOCKS: Final = 1_000
BLOCKS_MAX: Final = 10_000_000  # maximum blocks of a container, for callers that list all
ANSWER_S: Final = 30.0  # time until the first answer of a stream, with a slow disk
BYTES_PER_S_MIN: Final = 1024**2  # a slower datanode is treated as down
SAID_BYTES_MAX: Final = 300  # limit of a datanode's error message; a stack trace follows
RECONNECT_MS_MAX: Final = 1_000
CHECKSUM_NONE: Final = 1
UNPARSED: Final = "cannot parse this request; before Ozone 2.1 there is none for trees"
CLOSED_AT_ONCE: Final = re.compile(r"failed to connect.*(Socket closed|Connection reset)")
TLS_HINT: Final = (
    "it closes plaintext connections at once, as a port with TLS does; name the files of the "
    "secure cluster with --ozone-conf"
)
EXPIRED: Final = "Expired token"
CLOCK_HINT: Final = "; the token is new, so the clocks of the two hosts differ by an hour or more"
ANY_DATANODE: Final = "suture"  # must be set; checked only for erasure-coded containers
OPTIONS: Final = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS_MAX),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
    NO_PROXY,
)

Options = Sequence[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class DatanodeAccess:
    """Opens the channels and adds the tokens for calls to datanodes.

    By default, calls use plaintext and no tokens. `sign` adds a token to a request. It raises
    RefusedError or UnavailableError if there is no key to sign the token.
    """

    open_channel: Callable[[str, Options], grpc.Channel] = grpc.insecure_channel
    sign: Callable[[Any], None] = lambda _: None


NO_SECURITY: Final = DatanodeAccess()


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """Facts about a replica, as its datanode reports them.

    `state` is Ozone's name of the state of the replica, or "" if the state is unknown.
    """

    state: str
    used_bytes: int
    block_count: int


@dataclass(frozen=True, slots=True)
class _Question:
    """A request to a datanode.

    `data_bytes` is the size of the data in the request and in its answer. `wait_s` is the number of
    seconds that the answer may take in addition to the usual timeout.
    """

    request: Any
    data_bytes: int = 0
    wait_s: float = 0.0


class Datanode:
    """Client of one datanode, which connects on first use. Thread-safe."""

    def __init__(
        self,
        address: str,
        datanode_id: str = "",
        *,
        replica_index: int = 0,
        answer_s: float = ANSWER_S,
        access: DatanodeAccess = NO_SECURITY,
    ) -> None:
        """Create a client.

        For an erasure-coded container, `replica_index` is the index of the datanode's shard, and
        `datanode_id` must be correct, because a datanode with another id rejects the requests. For
        other containers, any id is accepted.
        """
        self.address = address
        self._datanode_id = datanode_id or ANY_DATANODE
        self._replica_index = replica_index
        self._answer_s = answer_s
        self._sign = access.sign
        self._channel = access.open_channel(address, OPTIONS)
        self._send = Stub(self._channel, XCEIVER, encoders=BYTES, decoders=BYTES).send

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the gRPC channel."""
        self._channel.close()

    # Commands.

    def container(self, container_id: ContainerId) -> ContainerFacts:
        """Return the facts that the datanode reports about its replica of a container.

        Raise RefusedError if the datanode rejects the request, and UnavailableError if it does not
        answer.
        """
        request = self._request(DatanodeCommand.READ_CONTAINER, container_id, read_container={})
        data = self._one(request).read_container.container
        return ContainerFacts(STATES.get(data.state, ""), data.used_bytes, data.block_count)

    def checksum_info(self, container_id: ContainerId) -> bytes:
        """Return the tree of the replica, in the format of a tree file.

        Raise RefusedError if the datanode rejects the request, and UnavailableError if it does not
        answer. The code is MALFORMED_REQUEST if the tree is too large for one message, or if the
        datanode runs Ozone before 2.1.
        """
        request = self._request(
            DatanodeCommand.GET_CONTAINER_CHECKSUM_INFO,
            container_id,
            get_container_checksum_info={"container_id": container_id},
        )
        info: bytes = self._one(request).get_container_checksum_info.info
        return info

    def block(self, container_id: ContainerId, block_id: BlockId) -> BlockData:
        """Return one block with all of its chunks.

        Raise RefusedError if the datanode rejects the request, and UnavailableError if it does not
        answer.
        """
        (_, found) = next(iter(self.blocks(container_id, [block_id])))
        if isinstance(found, SutureError):
            raise found
        return found

    def blocks(
        self, container_id: ContainerId, block_ids: Iterable[BlockId]
    ) -> Iterator[tuple[BlockId, BlockData | RefusedError]]:
        """Yield (block id, block) for each id in `block_ids`, in this order.

        If the datanode rejects a request, yield the RefusedError in the place of the block. Raise
        UnavailableError if the datanode does not answer.
        """
        ids = list(block_ids)
        questions = [
            _Question(
                self._request(
                    DatanodeCommand.GET_BLOCK,
                    container_id,
                    get_block={"block_id": self.key(container_id, one)},
                )
            )
            for one in ids
        ]
        for block_id, answer in zip(ids, self._all(questions), strict=True):
            if isinstance(answer, RefusedError):
                yield block_id, answer
                continue
            try:
                yield block_id, self._block(container_id, block_id, answer.get_block.block)
            except RefusedError as error:
                yield block_id, error

    def block_ids(self, container_id: ContainerId) -> Iterator[BlockId]:
        """Yield the ids of all blocks, in the order of their decimal text (10 before 9).

        The ids are requested page by page. Raise RefusedError if the datanode rejects a request,
        and UnavailableError if it does not answer.
        """
        last: int | None = None
        count = 0
        while True:
            # A page must start with an existing block, so start with the last one of the previous
            # page and drop it.
            wish = {"count": PAGE_BLOCKS} | ({} if last is None else {"start_local_id": last})
            answer = self._one(
                self._request(DatanodeCommand.LIST_BLOCK, container_id, list_block=wish)
            )
            ids = [self._named(container_id, row) for row in answer.list_block.blocks]
            new = ids if last is None or ids[:1] != [last] else ids[1:]
            if any(str(one) <= str(other) for other, one in zip([last, *new], new, strict=False)
                   if other is not None):  # fmt: skip
                raise self._malformed("its blocks are not in order")
            yield from new
            count += len(new)
            if len(ids) < PAGE_BLOCKS or not new:
                return
            if count > BLOCKS_MAX:
                raise self._malformed(f"more than {BLOCKS_MAX} blocks")
            last = new[-1]

    def read(self, container_id: ContainerId, block_id: BlockId, chunk: ChunkInfo) -> bytes:
        """Return the bytes of a chunk, without verification.

        Raise RefusedError if the datanode rejects the request or returns fewer bytes, and
        UnavailableError if it does not answer.
        """
        ends = range(chunk.offset, chunk.end, PIECE_BYTES)
        pieces = [(offset, min(PIECE_BYTES, chunk.end - offset)) for offset in ends]
        questions = [
            _Question(self._read_request(container_id, block_id, *piece), piece[1])
            for piece in pieces
        ]
        data = bytearray()
        for (offset, length_bytes), answer in zip(pieces, self._all(questions), strict=True):
            if isinstance(answer, RefusedError):
                raise answer
            data += self._piece(answer.read_chunk, block_id, offset, length_bytes)
        return bytes(data)

    def key(self, container_id: ContainerId, block_id: BlockId) -> dict[str, int]:
        """Return the fields that identify a block in requests."""
        key = {"container_id": container_id, "local_id": block_id}
        if self._replica_index:
            key["replica_index"] = self._replica_index
        return key

    def execute(
        self,
        command: DatanodeCommand,
        container_id: ContainerId,
        *,
        data_bytes: int = 0,
        wait_s: float = 0.0,
        **body: Any,
    ) -> None:
        """Execute an idempotent command whose answer has no data.

        If the connection is lost, send the command again. Raise RefusedError if the datanode
        rejects the command, and UnavailableError if it does not answer.
        """
        self._one(self._request(command, container_id, **body), data_bytes, wait_s)

    # Requests and answers.

    def _request(self, command: DatanodeCommand, container_id: ContainerId, **body: Any) -> Any:
        return REQUEST(
            command=command, container_id=container_id, datanode_id=self._datanode_id, **body
        )

    def _read_request(
        self, container_id: ContainerId, block_id: BlockId, offset: int, length_bytes: int
    ) -> Any:
        chunk = {
            "name": f"{block_id}_{offset}",
            "offset": offset,
            "length": length_bytes,
            "checksum_data": {"type": CHECKSUM_NONE, "bytes_per_checksum": 0},
        }
        body = {"block_id": self.key(container_id, block_id), "chunk": chunk}
        return self._request(DatanodeCommand.READ_CHUNK, container_id, read_chunk=body)

    def _block(self, container_id: ContainerId, block_id: BlockId, row: bytes) -> BlockData:
        decode = decode_noted if self._replica_index else decode_stored
        try:
            return decode(container_id, block_id, row, None).block
        except DamagedData as damage:
            raise self._malformed(str(damage)) from damage
        except UnsupportedFormat as why:
            raise RefusedError(Code.INELIGIBLE, f"datanode {self.address}: {why}") from why

    def _named(self, container_id: ContainerId, row: bytes) -> BlockId:
        try:
            named = parse(BLOCK_DATA, row).block_id
        except DamagedData as damage:
            raise self._malformed(str(damage)) from damage
        if named.container_id != container_id:
            raise self._malformed(f"a block of container {named.container_id}")
        return BlockId(named.local_id)

    def _piece(self, answer: Any, block_id: BlockId, offset: int, length_bytes: int) -> bytes:
        data: bytes = answer.data or b"".join(answer.buffers.buffers)
        if (answer.block_id.local_id, answer.chunk.offset) != (block_id, offset):
            raise self._malformed(
                f"bytes of block {answer.block_id.local_id} at {answer.chunk.offset}, "
                f"asked for was block {block_id} at {offset}"
            )
        if len(data) != length_bytes:
            raise RefusedError(
                Code.UNABLE_TO_FIND_CHUNK,
                f"datanode {self.address}: block {block_id} has {len(data)} of {length_bytes} "
                f"bytes at {offset}",
            )
        return data

    def _malformed(self, what: str) -> RefusedError:
        return RefusedError(Code.MALFORMED_REQUEST, f"datanode {self.address} answered {what}")

    # Streams of requests.

    def _one(self, request: Any, data_bytes: int = 0, wait_s: float = 0.0) -> Any:
        (answer,) = self._all([_Question(request, data_bytes, wait_s)])
        if isinstance(answer, RefusedError):
            raise answer
        return answer

    def _all(self, questions: Sequence[_Question]) -> Iterator[Any]:
        """Yield the answer to each request, in the order of the requests.

        If the datanode rejects a request, yield the RefusedError in the place of the answer. Raise
        UnavailableError if the datanode does not answer. Requests that were answered before the
        connection was lost are not sent again.
        """
        done = 0
        while done < len(questions):
            batch = questions[done : done + REQUESTS_MAX]
            answers: list[Any] = []
            for answer in call_with_retry(
                partial(self._wait_for_first, batch), timeout_s=self._answer_s
            ):
                answers.append(answer)
                yield answer
            if len(answers) != len(batch):
                raise UnavailableError(
                    Code.UNAVAILABLE,
                    f"datanode {self.address} ended the stream after {len(answers)} of "
                    f"{len(batch)} responses",
                )
            done += len(batch)

    def _wait_for_first(self, questions: Sequence[_Question]) -> Iterator[Any]:
        """Send the requests in a new stream, and wait for the first answer.

        Return an iterator of all answers. Because of this wait, a failed connection raises its
        error here, and the caller can try again.
        """
        answers = self._conversation(questions)
        first = next(answers, None)

        def all_of_them() -> Iterator[Any]:
            if first is not None:
                yield first
                yield from answers

        return all_of_them()

    def _conversation(self, questions: Sequence[_Question]) -> Iterator[Any]:
        requests: SimpleQueue[bytes | None] = SimpleQueue()
        waiting = iter(questions)
        data_bytes = sum(question.data_bytes for question in questions)
        wait_s = sum(question.wait_s for question in questions)
        timeout_s = self._answer_s + wait_s + data_bytes / BYTES_PER_S_MIN

        def ask() -> None:
            question = next(waiting, None)
            if question is not None:
                self._sign(question.request)
            requests.put(None if question is None else question.request.SerializeToString())

        for _ in range(AHEAD_MAX):
            ask()
        stream = None
        try:
            stream = self._send(iter(requests.get, None), timeout=timeout_s)
            asked = iter(questions)
            for data in stream:
                question = next(asked, None)
                if question is None:
                    raise self._malformed("more than was asked")
                ask()
                yield self._answer(question, data)
        except grpc.RpcError as error:
            raise self._stream_error(error) from error
        except ValueError as error:  # gRPC raises this error for a closed channel
            raise UnavailableError(Code.UNAVAILABLE, "the connection was closed") from error
        finally:
            requests.put(None)  # ends the wait for the next request
            if stream is not None:
                stream.cancel()

    def _stream_error(self, error: grpc.RpcError) -> SutureError:
        """Return the SutureError for a gRPC error that ended the stream."""
        found = error_from(error, f"the datanode at {self.address}")
        message = f"datanode {self.address}: {found}"
        if CLOSED_AT_ONCE.search(found.facts.get(DETAIL_KEY, str(found))):
            message += f"; {TLS_HINT}"
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNKNOWN:
            # grpc-java answers so if it cannot parse a request, for instance one with a new
            # command.
            said = f" ({error.details()})" if error.details() else ""
            return RefusedError(Code.MALFORMED_REQUEST, f"datanode {self.address} {UNPARSED}{said}")
        if found.code is Code.MALFORMED_REQUEST:  # message too large, or another service
            return RefusedError(found.code, message)
        return UnavailableError(Code.UNAVAILABLE, message)

    def _answer(self, question: _Question, data: bytes) -> Any:
        """Return the decoded answer to a request.

        If the datanode rejected the request, return a RefusedError.
        """
        with suppress(DamagedData):
            answer = parse(ANSWER, data)
            if answer.command != question.request.command:
                raise self._malformed(f"command {answer.command}")
            if answer.result == Result.SUCCESS:
                return answer
            name = result_name(answer.result)
            lines = answer.message[:SAID_BYTES_MAX].decode("utf-8", "replace").splitlines()
            said = printable(lines[0]) if lines else ""
            said += CLOCK_HINT if EXPIRED in said else ""
            code = Code(name) if name in Code.__members__ else Code.INELIGIBLE
            return RefusedError(code, f"datanode {self.address}: {name}: {said}".rstrip(": "))
        raise self._malformed(f"{len(data)} bytes that are no answer")
