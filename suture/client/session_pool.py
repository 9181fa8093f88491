"""Keeps the writer sessions of a client between puts, and divides files among sessions.

With a kept session, a small put needs no calls to create a container and to end the session. A kept
session does not block other clients. If no put uses its container for `session_idle_ms`, the SCM
closes the container. If there is no room for another container, the SCM assigns this container to
another client.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Final

import grpc

from merkle.replica import CHUNK_BYTES_DEFAULT
from suture.client.file_pieces import SourceFile, piece_count
from suture.client.writer import (
    ALLOCATION_BLOCKS_MAX,
    SessionState,
    StoredFile,
    Stream,
    Waits,
    WriterSession,
)
from suture.ec.scheme import Scheme
from suture.errors import SutureError
from suture.wire.clients.block_peer import NodeAddress
from suture.wire.clients.channel import start_call
from suture.wire.clients.message_groups import in_groups
from suture.wire.clients.scm import ScmClient
from suture.wire.mapping.rpc_services import Stub
from suture.wire.v1 import scm_pb2

SESSIONS_KEPT_MAX: Final = 4  # each reserves room for a container: as many as one put of files uses
ALLOCATION_BATCH: Final = 128  # files whose blocks are requested from the SCM at once
END_TIMEOUT_S: Final = 2.0  # for a closing client; other sessions expire at the SCM


@dataclass(eq=False)
class SessionPool:
    """Keeps writer sessions for later puts. A session serves one put at a time. Thread-safe."""

    scm: ScmClient
    dial: Callable[[NodeAddress], Stub]
    stream: Stream

    def __post_init__(self) -> None:
        self._kept: list[tuple[str, SessionState]] = []  # (scheme, state) of each session
        self._is_closed = False
        self._lock = Lock()  # protects the fields above

    def acquire(
        self, scheme: Scheme | None, progress: Callable[[int], None], waits: Waits
    ) -> WriterSession:
        """Return a session for one put. It is a kept session with the same `scheme` if there is
        one, else a new session."""
        state = self._taken("" if scheme is None else str(scheme))
        if scheme is None:
            return WriterSession(self.scm, self.dial, self.stream, progress, waits, state=state)
        from suture.client.ecwriter import EcWriterSession  # most programs never need the codec

        return EcWriterSession(
            self.scm, self.dial, self.stream, progress, waits, scheme=scheme, state=state
        )

    def release(self, session: WriterSession) -> None:
        """Keep a session after a successful put. If enough sessions are kept, end it instead."""
        with self._lock:
            if len(self._kept) < SESSIONS_KEPT_MAX and not self._is_closed:
                self._kept.append((session.scheme, session.state))
                return
        end_session(session, close=False)

    def close(self) -> None:
        """End the kept sessions. A session that is released later is ended, too."""
        with self._lock:
            self._is_closed = True
            kept, self._kept = self._kept, []
        requests = [
            scm_pb2.EndWriteSessionRequest(client_id=state.client_id) for _scheme, state in kept
        ]
        end = self.scm.stub.EndWriteSession
        for answer in [start_call(end, one, timeout_s=END_TIMEOUT_S) for one in requests]:
            with suppress(grpc.RpcError):
                answer.result()

    def _taken(self, scheme: str) -> SessionState | None:
        """Remove and return the state of the most recently used session with this `scheme`; None if
        there is none.

        The container of the most recently used session is most likely still open.
        """
        with self._lock:
            for at in reversed(range(len(self._kept))):
                if self._kept[at][0] == scheme:
                    return self._kept.pop(at)[1]
        return None


def end_session(session: WriterSession, *, close: bool) -> None:
    """End a session. If the SCM cannot end it now, the session expires at the SCM later."""
    with suppress(SutureError):
        session.finish(close=close)


def balance_shares(sources: Sequence[SourceFile], count: int) -> list[list[SourceFile]]:
    """Divide `sources` into at most `count` lists with about equally many bytes. Each list begins
    with the largest files."""
    shares: list[list[SourceFile]] = [[] for _ in range(count)]
    loads = [0] * count
    for source in sorted(sources, key=lambda s: (-s.size_bytes, s.key)):
        lightest = loads.index(min(loads))
        shares[lightest].append(source)
        loads[lightest] += source.size_bytes + CHUNK_BYTES_DEFAULT // 64
    return [share for share in shares if share]


def put_share(
    session: WriterSession, share: list[SourceFile], replace: bool, stored: list[StoredFile]
) -> None:
    """Store the files in `share` with one session, batch by batch. Append the stored files to
    `stored`."""
    for batch in batches(share, session.block_bytes):
        stored += session.put(batch, replace=replace)


def batches(share: Sequence[SourceFile], block_bytes: int) -> Iterator[list[SourceFile]]:
    """Yield the files in order, in batches whose blocks are allocated with one call. If a file has
    more blocks than the limit, it is a batch of its own."""
    return in_groups(
        share,
        lambda source: piece_count(source, block_bytes),
        ALLOCATION_BLOCKS_MAX,
        ALLOCATION_BATCH,
    )
