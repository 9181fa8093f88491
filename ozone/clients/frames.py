"""Encodes and decodes Hadoop's RPC: connection header, calls, answers. No I/O.

connection  "hrpc", version 9, service class 0, authentication method; then the context
frame       be32 length, then messages, each preceded by its length as a varint
call        RequestHeader, MethodHeader, the request of the protocol
answer      AnswerHeader, then the answer of the protocol if there was no error
"""

from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from merkle.damaged_data import DamagedData
from ozone.clients.messages import (
    ANSWER_HEADER,
    CONNECTION_CONTEXT,
    METHOD_HEADER,
    REQUEST_HEADER,
    SASL,
)
from suture.wire.mapping.varint import read_varint, varint

MAGIC: Final = b"hrpc"
IPC_VERSION: Final = 9
SERVICE_CLASS: Final = 0
SIMPLE: Final = 0
"""Authentication method SIMPLE: the server trusts the caller's user name without proof."""
SASL_CALL: Final = -33
"""Authentication method SASL in the connection header, and also the call id of SASL messages."""

CONTEXT_CALL: Final = -3
PROTOBUF: Final = 2  # RpcKindProto
FINAL_PACKET: Final = 0  # OperationProto
SUCCESS: Final = 0  # RpcStatusProto
FATAL: Final = 2
UNAUTHORIZED: Final = 15  # RpcErrorCodeProto
ANSWER_BYTES_MAX: Final = 128 * 1024**2  # ipc.maximum.response.length of Hadoop
LENGTH_BYTES: Final = 4
HTTP: Final = b"HTTP"


@dataclass(frozen=True, slots=True)
class Failure:
    """An error answer.

    `exception` is the name of a Java class, and `text` the first line of its message.
    """

    exception: str
    text: str
    is_fatal: bool = False
    is_unauthorized: bool = False
    is_not_known: bool = False
    """True if no answer arrived, so that the server may have executed the call."""

    @property
    def name(self) -> str:
        """Name of the Java class of the exception, without its package."""
        return self.exception.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Answer:
    """A frame from the server.

    `call_id` identifies the call that is answered. If it is negative, the frame concerns the
    complete connection.
    """

    call_id: int
    body: bytes
    failure: Failure | None


def connection_header(authentication: int) -> bytes:
    """Return the header of a connection, which the client sends first."""
    return MAGIC + bytes((IPC_VERSION, SERVICE_CLASS, authentication & 0xFF))


def context_frame(client_id: bytes, user: str, protocol: str) -> bytes:
    """Return the frame that follows the connection header.

    It names the caller and the protocol of the calls.
    """
    context = CONNECTION_CONTEXT(protocol=protocol)
    context.user.effective_user = user
    return _frame(_header(client_id, CONTEXT_CALL), context)


def sasl_frame(message: Any) -> bytes:
    """Return the frame that contains a SASL message.

    The message belongs to the authentication, or is a WRAP message with protected data.
    """
    return _frame(_header(b"", SASL_CALL), message)


def parse_sasl(body: bytes) -> Any:
    """Return the SASL message in the body of an answer. Raise DamagedData if it is invalid."""
    try:
        return SASL.FromString(body)
    except DecodeError as error:
        raise DamagedData(f"{len(body)} bytes are no message of SASL") from error


class FrameBuffer:
    """Buffer that splits received bytes into frames."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._at = 0

    def feed(self, data: bytes) -> None:
        """Append received bytes to the buffer."""
        del self._received[: self._at]
        self._at = 0
        self._received += data

    def pop_frame(self) -> bytes | None:
        """Return the next frame without its length field, or None if it is not complete yet.

        Raise DamagedData if its length is invalid.
        """
        head = bytes(self._received[self._at : self._at + LENGTH_BYTES])
        if len(head) < LENGTH_BYTES:
            return None
        length_bytes = int.from_bytes(head, "big")
        if not 0 < length_bytes <= ANSWER_BYTES_MAX:
            raise DamagedData("HTTP" if head == HTTP else f"{length_bytes} bytes in one answer")
        begin = self._at + LENGTH_BYTES
        if len(self._received) < begin + length_bytes:
            return None
        self._at = begin + length_bytes
        return bytes(self._received[begin : self._at])


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a protocol. Its header is encoded once and reused for each call."""

    client_id: bytes
    header: bytes

    @classmethod
    def of(cls, client_id: bytes, protocol: str, name: str, version: int) -> "Method":
        """Return the method `name` of `protocol`, with its encoded header."""
        header = METHOD_HEADER(method=name, protocol=protocol, version=version)
        return cls(client_id, _delimited(header))

    def frame(self, call_id: int, request: Any) -> bytes:
        """Return the frame with one call of this method."""
        body = _delimited(_header(self.client_id, call_id)) + self.header + _delimited(request)
        return len(body).to_bytes(LENGTH_BYTES, "big") + body


def parse_answer(frame: bytes) -> Answer:
    """Parse a frame without its length field. Raise DamagedData if the frame is invalid."""
    end, at = _length(frame, 0)
    try:
        header = ANSWER_HEADER.FromString(frame[at : at + end])
    except DecodeError as error:
        raise DamagedData(f"{len(frame)} bytes begin with no header of an answer") from error
    if not header.HasField("call_id") or not header.HasField("status"):
        raise DamagedData(f"{len(frame)} bytes name no call that they answer")
    call_id = header.call_id - 2**32 if header.call_id >= 2**31 else header.call_id
    if header.status != SUCCESS:
        lines = header.error.strip().splitlines() or ["no reason was given"]
        failure = Failure(
            header.exception,
            _without_class(lines[0], header.exception),
            header.status == FATAL,
            header.error_detail == UNAUTHORIZED,
        )
        return Answer(call_id, b"", failure)
    body_bytes, begin = _length(frame, at + end)
    if begin + body_bytes != len(frame):
        raise DamagedData(
            f"an answer of {body_bytes} bytes in a frame with {len(frame) - begin} left"
        )
    return Answer(call_id, frame[begin:], None)


def _without_class(line: str, exception: str) -> str:
    return line.removeprefix(f"{exception}: ")


def _header(client_id: bytes, call_id: int) -> Any:
    return REQUEST_HEADER(
        rpc_kind=PROTOBUF,
        operation=FINAL_PACKET,
        call_id=call_id,
        client_id=client_id,
        retry_count=-1,
    )


def _frame(*messages: Any) -> bytes:
    body = b"".join(map(_delimited, messages))
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def _delimited(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return varint(len(data)) + data


def _length(frame: bytes, at: int) -> tuple[int, int]:
    """Read a varint, which is the length of the data after it.

    Return the length, and the offset of that data. Raise DamagedData if the data exceeds the frame.
    """
    number, end = read_varint(memoryview(frame), at)
    if end == at or end + number > len(frame):
        raise DamagedData(f"an answer of {len(frame)} bytes breaks off at byte {at}")
    return number, end
