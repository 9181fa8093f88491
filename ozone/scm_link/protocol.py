"""The calls of a datanode to one storage container manager (SCM): version, register, heartbeat.

A call opens the connection if there is none. After an idle time, a call opens a new connection,
because Hadoop's servers close idle connections. The heartbeat worker retries failed calls. Only one
thread may use the client.
"""

import os
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from ozone.clients.authentication import Identity
from ozone.clients.connection import Address, Connection
from ozone.clients.frames import Failure, Method
from ozone.scm_link.messages import (
    METHOD,
    OK,
    PROTOCOL,
    PROTOCOL_VERSION,
    REQUEST,
    RESPONSE,
    DatanodeRequestType,
)
from suture.errors import Code, RefusedError, UnavailableError
from suture.observe.terminal_escape import printable

TIMEOUT_S: Final = 10.0
IDLE_S: Final = 10.0  # Hadoop's clients close a connection after this idle time
CALL_ID_END: Final = 2**31
CLIENT_ID_BYTES: Final = 16
SAID_CHARS_MAX: Final = 300
WRONG_PORT: Final = frozenset({"RpcNoSuchProtocolException", "RpcNoSuchMethodException"})
PORT_HINT: Final = "the port is that of ozone.scm.datanode.address: 9861, if nothing was configured"


@dataclass(eq=False)
class DatanodeProtocol:
    """A client of one SCM.

    A call that fails raises RefusedError if another attempt would fail, too, and otherwise
    UnavailableError.
    """

    address: Address
    identity: Identity
    _: KW_ONLY
    timeout_s: float = TIMEOUT_S
    now_s: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._connection: Connection | None = None
        self._used_at_s = 0.0
        self._call_id = 0
        client_id = os.urandom(CLIENT_ID_BYTES)
        self._method = Method.of(client_id, PROTOCOL, METHOD, PROTOCOL_VERSION)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def local_host(self) -> str:
        """Local address of the connection, or "" if there is no connection."""
        return "" if self._connection is None else self._connection.local_host

    def connect(self) -> None:
        """Connect, unless there is a connection that was used recently."""
        if self._connection is not None and self.now_s() - self._used_at_s > IDLE_S:
            self.close()
        if self._connection is None:
            self._connection = Connection(
                self.address,
                self.identity,
                client_id=self._method.client_id,
                protocol=PROTOCOL,
                timeout_s=self.timeout_s,
                hint=PORT_HINT,
            )

    def get_version(self) -> Any:
        """Return the SCM's answer to a version request, which has the cluster id and the SCM id."""
        return self._asked(DatanodeRequestType.GET_VERSION, REQUEST(get_version={}))

    def register(self, message: Any) -> Any:
        """Register this datanode, for the first time or again. Return the answer of the SCM."""
        return self._asked(DatanodeRequestType.REGISTER, REQUEST(register=message))

    def heartbeat(self, message: Any) -> Any:
        """Send a heartbeat with its reports.

        Return the answer, which has the commands of the SCM.
        """
        return self._asked(DatanodeRequestType.HEARTBEAT, REQUEST(heartbeat=message))

    def _asked(self, kind: DatanodeRequestType, request: Any) -> Any:
        request.kind = kind
        try:
            self.connect()
            answer = self._decode_answer(request)
        except (RefusedError, UnavailableError):
            self.close()  # because a later answer on it may belong to this call
            raise
        self._used_at_s = self.now_s()
        field = kind.name.lower()
        if answer.kind != kind or not answer.HasField(field):
            raise self._malformed(f"no answer to {kind.name}")
        return getattr(answer, field)

    def _decode_answer(self, request: Any) -> Any:
        assert self._connection is not None
        self._call_id = (self._call_id + 1) % CALL_ID_END
        self._connection.send(self._method.frame(self._call_id, request))
        answer = self._connection.receive()
        if answer.call_id != self._call_id:
            raise self._malformed(f"the answer to call {answer.call_id}")
        if answer.failure is not None:
            raise self._error_from(answer.failure)
        try:
            response = RESPONSE.FromString(answer.body)
        except DecodeError as error:
            raise self._malformed(f"{len(answer.body)} bytes that are no response") from error
        if response.status != OK or (response.HasField("success") and not response.success):
            said = text_of(response.message) or "no reason was given"
            raise UnavailableError(
                Code.UNAVAILABLE, f"{self.address} rejected {request.kind}: {said}"
            )
        return response

    def _error_from(self, failure: Failure) -> RefusedError | UnavailableError:
        said = f"{failure.name}: {printable(failure.text[:SAID_CHARS_MAX])}"
        if failure.name in WRONG_PORT:
            return RefusedError(
                Code.MALFORMED_REQUEST,
                f"{self.address} is not the datanode port of an SCM: {said}",
                hint=PORT_HINT,
            )
        return UnavailableError(Code.UNAVAILABLE, f"{self.address}: {said}")

    def _malformed(self, what: str) -> UnavailableError:
        return UnavailableError(Code.UNAVAILABLE, f"{self.address} answers with {what}")


def text_of(data: bytes) -> str:
    """Return a received text without characters that cannot be printed."""
    return printable(data[:SAID_CHARS_MAX].decode("utf-8", "replace"))
