"""A client of Ozone's storage container manager (SCM), with many requests in flight at once.

One of several SCMs is the leader. If another SCM rejects a call, the client tries the next SCM. If
a connection breaks, the client opens it again and repeats the requests without an answer, until no
answer has arrived for `patience_s` seconds. Only requests that read are repeated. A command is sent
once (`order_each`).
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from google.protobuf.message import DecodeError

from ozone.clients.authentication import Identity
from ozone.clients.connection import Address, Connection
from ozone.clients.frames import Answer, Failure, Method
from ozone.clients.messages import REQUEST, RESPONSE, ScmRequestType
from suture.errors import Code, RefusedError, UnavailableError

PROTOCOL: Final = "org.apache.hadoop.hdds.scm.protocol.StorageContainerLocationProtocol"
PROTOCOL_VERSION: Final = 1
METHOD: Final = "submitRequest"
CLIENT_VERSION: Final = 4  # a client that knows erasure coding, which the SCM hides from others
WINDOW: Final = 128  # calls in flight; at 200 bytes each, all fit into any buffer
CALL_ID_END: Final = 2**31
CLIENT_ID_BYTES: Final = 16
STATUS_OK: Final = 1
STATUS_NOT_LEADER: Final = 4

ELSEWHERE: Final = frozenset(
    {"ServerNotLeaderException", "NotLeaderException", "LeaderNotReadyException"}
)
LATER: Final = frozenset({"StandbyException", "RetriableException", "ServerTooBusyException"})
WRONG_PORT: Final = frozenset({"RpcNoSuchProtocolException", "RpcNoSuchMethodException"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScmClientOptions:
    """Timeouts and limits of requests to the SCM."""

    timeout_s: float = 60.0
    """Seconds to wait for one answer; long enough for a garbage collection of the SCM."""
    patience_s: float = 120.0
    """Maximum time in seconds without any answer, over all retries."""
    pause_s: float = 1.0
    """Pause in seconds after all SCMs were tried without success."""
    window: int = WINDOW


@dataclass(slots=True)
class CallStats:
    """Numbers of requests, connections and received bytes: the cost of a command."""

    requests: int = 0
    connections: int = 0
    answered_bytes: int = 0


class _RetryElsewhere(Exception):
    """Raised to repeat a request at another SCM, or later at the same SCM."""


@dataclass(slots=True)
class OzoneScmClient:
    """A client of one SCM, or of several SCMs with one leader. Only one thread may use it."""

    addresses: Sequence[Address]
    identity: Identity
    manners: ScmClientOptions = field(default_factory=ScmClientOptions)
    now_s: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep
    counts: CallStats = field(default_factory=CallStats)
    _connection: Connection | None = None
    _place: int = 0
    _call_id: int = 0
    _method: Method = field(init=False)
    _said: dict[Address, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        client_id = os.urandom(CLIENT_ID_BYTES)
        self._method = Method.of(client_id, PROTOCOL, METHOD, PROTOCOL_VERSION)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def call(self, kind: ScmRequestType, **fields: Any) -> Any:
        """Return the answer to one request.

        Raise RefusedError if the SCM rejects the request, and UnavailableError if no SCM answers.
        """
        ((_, answer),) = self.call_each([0], lambda _: request(kind, **fields))
        if isinstance(answer, Failure):
            raise RefusedError(
                Code.CONTAINER_INTERNAL_ERROR,
                f"{self.leader} rejected {kind.name}: {answer.name}: {answer.text}",
            )
        return answer

    @property
    def leader(self) -> Address:
        """Address of the SCM that was called last."""
        return self.addresses[self._place]

    def call_each(
        self, items: Iterable[int], request_of: Callable[[int], Any]
    ) -> Iterator[tuple[int, Any]]:
        """Send a request for each item.

        Yield (item, answer) in the order of the arrival of the answers. If the SCM rejects a
        request, yield its Failure in the place of the answer. Many requests are in flight at once.
        Raise RefusedError if the SCM rejects the caller, and UnavailableError if no answer has
        arrived for `patience_s` seconds.
        """
        rest = iter(items)
        asked: dict[int, int] = {}
        again: list[int] = []
        deadline_s = self.now_s() + self.manners.patience_s
        while True:
            try:
                connection = self._connected()
                self._send(connection, asked, again, rest, request_of)
                if not asked:
                    return
                answer = connection.receive()
                if answer.call_id not in asked:
                    continue  # answers a call of an earlier, unfinished iteration
                told = self._decode_response(answer)
            except (_RetryElsewhere, UnavailableError) as error:
                again += asked.values()
                asked.clear()
                self._next(str(error), deadline_s)
                continue
            deadline_s = self.now_s() + self.manners.patience_s
            yield asked.pop(answer.call_id), told

    def order_each(
        self, items: Iterable[int], request_of: Callable[[int], Any]
    ) -> Iterator[tuple[int, Any]]:
        """Send a command for each item, one after the other. Yield (item, outcome of its command).

        If a command gets no answer, its outcome is a Failure, because its effect is unknown. An SCM
        that answers that it is not the leader has not executed the command. The command is then
        sent to the next SCM.
        """
        for item in items:
            deadline_s = self.now_s() + self.manners.patience_s
            while True:
                sent = False
                try:
                    connection = self._connected()
                    self._call_id = (self._call_id + 1) % CALL_ID_END
                    frame = self._method.frame(self._call_id, request_of(item))
                    sent = True
                    self.counts.requests += 1
                    connection.send(frame)
                    answer = connection.receive()
                    while answer.call_id != self._call_id:
                        answer = connection.receive()
                    yield item, self._decode_response(answer)
                    break
                except _RetryElsewhere as error:
                    self._next(str(error), deadline_s)
                except UnavailableError as error:
                    self._drop()
                    if sent:
                        text = f"not known whether it was done: {error}"
                        yield item, Failure(error.code.value, text, is_not_known=True)
                        break
                    self._next(str(error), deadline_s)

    def _send(
        self,
        connection: Connection,
        asked: dict[int, int],
        again: list[int],
        rest: Iterator[int],
        request_of: Callable[[int], Any],
    ) -> None:
        free = self.manners.window - len(asked)
        if free * 2 < self.manners.window:
            return  # send half a window at a time: fewer, larger writes
        wanted, again[:] = again[:free], again[free:]
        wanted += islice(rest, free - len(wanted))
        frames = []
        for item in wanted:
            self._call_id = (self._call_id + 1) % CALL_ID_END
            asked[self._call_id] = item
            frames.append(self._method.frame(self._call_id, request_of(item)))
        if frames:
            self.counts.requests += len(frames)
            connection.send(b"".join(frames))

    def _decode_response(self, answer: Answer) -> Any:
        """Return the decoded answer of the SCM, or a Failure if the SCM rejected the request.

        Raise _RetryElsewhere if the request is to be repeated, and RefusedError if the answer is
        invalid or the port does not belong to an SCM.
        """
        failure = answer.failure
        if failure is None:
            self.counts.answered_bytes += len(answer.body)
            try:
                response = RESPONSE.FromString(answer.body)
            except DecodeError as error:
                raise RefusedError(
                    Code.MALFORMED_REQUEST,
                    f"{self.leader} sent {len(answer.body)} bytes that are not a response",
                ) from error
            if response.status == STATUS_NOT_LEADER:
                raise _RetryElsewhere("does not lead")
            is_refused = response.HasField("success") and not response.success
            if response.status == STATUS_OK and not is_refused:
                return response
            return Failure(f"status {response.status}", response.message or "no reason was given")
        if failure.name in ELSEWHERE:
            raise _RetryElsewhere(f"does not lead: {failure.text}")
        if failure.name in LATER:
            raise _RetryElsewhere(f"{failure.name}: {failure.text}")
        if failure.name in WRONG_PORT:
            raise RefusedError(
                Code.MALFORMED_REQUEST,
                f"{self.leader} is not the client port of an SCM: {failure.text}",
                hint="use the port of ozone.scm.client.address, by default 9860",
            )
        return failure

    def _connected(self) -> Connection:
        if self._connection is None:
            self.counts.connections += 1
            self._connection = Connection(
                self.leader,
                self.identity,
                client_id=self._method.client_id,
                protocol=PROTOCOL,
                timeout_s=self.manners.timeout_s,
            )
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _next(self, said: str, deadline_s: float) -> None:
        """Switch to the next SCM. Pause after each time that all SCMs were tried.

        Raise UnavailableError after the deadline.
        """
        self._drop()
        self._said[self.leader] = said.removeprefix(f"{self.leader}: ")
        if self.now_s() >= deadline_s:
            reasons = "; ".join(f"{at}: {why}" for at, why in self._said.items())
            raise UnavailableError(
                Code.UNAVAILABLE,
                f"no SCM answered within {self.manners.patience_s:g} s: {reasons}",
                hint="check that one is the leader, and that the port is its client port",
            )
        self._place = (self._place + 1) % len(self.addresses)
        if self._place == 0:
            self.wait(self.manners.pause_s)


def request(kind: ScmRequestType, **fields: Any) -> Any:
    """Return a request message of this kind with the given fields."""
    built = REQUEST(kind=int(kind), version=CLIENT_VERSION)
    part = getattr(built, kind.name.lower())
    part.SetInParent()
    for name, value in fields.items():
        setattr(part, name, value)
    return built
