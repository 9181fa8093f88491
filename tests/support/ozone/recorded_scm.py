"""A fake SCM that answers requests over real sockets with the recorded bytes of a real SCM.

`tests/golden/ozone/scm.jsonl.zst` has each recorded call to the SCM of Ozone 2.2.0: the bytes after
the call's header, and the whole frame of the answer. This module parses requests by hand, by the
rules of protobuf's encoding. Of the answer, only the call number is replaced.
"""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from tests.support.ozone.hadoop_server import (
    GREETING,
    NO_ACCESS,
    HadoopServer,
    call_of,
    delimited,
    exactly,
    failure,
    fields_of,
    frame_of,
    framed,
    renumbered,
)

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "ozone"


def recorded(server: str) -> dict[bytes, bytes]:
    """Return the recorded answers of one server by request. `server` is "scm", "dn", "http" or
    "follower". A follower gives the same answer to all requests."""
    with (GOLDEN / "scm.jsonl.zst").open("rb") as packed:
        text = zstandard.ZstdDecompressor().stream_reader(packed).read()
    lines = map(json.loads, text.decode().splitlines())
    return {
        bytes.fromhex(line["request"]): bytes.fromhex(line["answer"])
        for line in lines
        if line["server"] == server
    }


def replicas_of_ozone() -> list[dict[str, object]]:
    """Return the replicas in the recorded cluster, as its datanodes reported them."""
    text = (GOLDEN / "scm-replicas.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@dataclass
class RecordedScm(HadoopServer):
    """A server on its own port, with one thread per connection."""

    answers: dict[bytes, bytes] = field(default_factory=lambda: recorded("scm"))
    leads: bool = True
    lets_in: bool = True
    hang_up_after: int = -1
    """Number of answers after which each connection ends; -1 = never."""
    held_back: int = 1
    """Number of calls that are read before any is answered. The last call is answered first."""
    silent_after: int = -1
    """Number of calls that are answered; later calls get no answer. -1 = all are answered."""
    raw: bytes = b""
    """Bytes that are sent instead of any answer."""
    calls: list[bytes] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    most_under_way: int = 0

    def __post_init__(self) -> None:
        self.listen()

    def serve(self, opened: socket.socket, stream: Any) -> None:
        """Answer calls, or send the raw bytes."""
        if self.raw:
            stream.read(1)
            opened.sendall(self.raw)
            return
        with suppress(ValueError):
            self._talk(opened, stream)

    def _talk(self, opened: socket.socket, stream: Any) -> None:
        assert exactly(stream, len(GREETING)) == GREETING
        header, rest = call_of(frame_of(stream))
        assert header[3] == 5  # -3 as a zigzag number: the context
        context = fields_of(delimited(rest)[0])
        assert context[3] == (
            b"org.apache.hadoop.hdds.scm.protocol.StorageContainerLocationProtocol"
        )
        user = fields_of(context[2])[1]  # type: ignore[arg-type]
        assert isinstance(user, bytes)
        self.users.append(user.decode())
        if not self.lets_in:
            said = failure(
                -3, NO_ACCESS, "SIMPLE authentication is not enabled.", status=2, detail=15
            )
            opened.sendall(framed(said))
            return
        answered = 0
        waiting: list[bytes] = []
        while True:
            call = frame_of(stream)
            self.calls.append(call_of(call)[1])
            if 0 <= self.silent_after < len(self.calls):
                continue
            waiting.append(self._answer(call))
            self.most_under_way = max(self.most_under_way, len(waiting))
            if len(waiting) < self.held_back:
                continue
            for answer in reversed(waiting):
                if answered == self.hang_up_after:
                    return
                opened.sendall(framed(answer))
                answered += 1
            waiting.clear()

    def _answer(self, frame: bytes) -> bytes:
        header, rest = call_of(frame)
        zigzag = header[3]
        assert isinstance(zigzag, int)
        assert zigzag & 1 == 0
        if not self.leads:
            return renumbered(recorded("follower")[b""], zigzag >> 1)
        return renumbered(self.answers[rest], zigzag >> 1)


@contextmanager
def recorded_scm(**wishes: object) -> Iterator[RecordedScm]:
    """Run a `RecordedScm` with these fields, and yield it."""
    server = RecordedScm(**wishes)  # type: ignore[arg-type]
    try:
        yield server
    finally:
        server.close()
