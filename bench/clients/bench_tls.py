"""Measures the cost of mutual TLS: chunks read over loopback with and without it, in pairs.

Server and client share this process, so its CPU seconds are those of both ends: the total cost in a
cluster. Files stay in the page cache, because the transport is measured, not a disk.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.measure import ROUNDS_DEFAULT, Measure, at_most
from merkle.replica import BlockId
from suture.wire.clients.peer import Peer
from suture.wire.security.caller import Role
from suture.wire.security.tls import LOOPBACK_ONLY, Security
from tests.support.authority import Authority
from tests.support.storage.datanodes import Datanode
from tests.support.storage.stored_replica import CONTAINER

MIB: Final = 1024**2
CHUNK_BYTES: Final = 4 * MIB
CHUNK_COUNT: Final = 16
CALLS: Final = 200
CPU_RATIO_MAX: Final = 2.0
CALL_RATIO_MAX: Final = 1.5


def measures() -> list[Measure]:
    """Measure reads of chunks, and small calls, with and without TLS."""
    with tempfile.TemporaryDirectory(prefix="suture-bench-") as directory, ExitStack() as open_ones:
        root = Path(directory)
        authority = Authority(root / "tls")
        bare = open_ones.enter_context(Served(root / "bare", LOOPBACK_ONLY, LOOPBACK_ONLY))
        tls = open_ones.enter_context(
            Served(
                root / "secured",
                authority.security("datanode", Role.PEER),
                authority.security("reader", Role.PEER),
            )
        )
        bulk_cpu, bulk_wall = ratios(lambda: read_all(bare), lambda: read_all(tls))
        call_cpu, _ = ratios(lambda: ask(bare), lambda: ask(tls))
    against = "plaintext, both ends"
    return [
        at_most("tls readChunk CPU", bulk_cpu, "x", CPU_RATIO_MAX, compared_with=against),
        Measure("tls readChunk time", bulk_wall, "x", against),
        at_most("tls small call CPU", call_cpu, "x", CALL_RATIO_MAX, compared_with=against),
    ]


class Served:
    """A datanode with one block of several chunks, and a peer that calls it."""

    def __init__(self, path: Path, serving: Security, calling: Security) -> None:
        self._node = Datanode("dn", path)
        store = self._node.replica
        store.store.create_container(CONTAINER)
        store.put(1, *[CHUNK_BYTES] * CHUNK_COUNT)
        store.store.close_container(CONTAINER, bcsid=0, force=True)
        self._node.serve(security=serving)
        self._peer = Peer(self._node.address, security=calling)

    def __enter__(self) -> Peer:
        return self._peer

    def __exit__(self, *_: object) -> None:
        self._peer.close()
        self._node.close()


def read_all(peer: Peer) -> None:
    """Read every chunk, verified by its checksums as a peer does."""
    for number in range(CHUNK_COUNT):
        peer.read_chunk(CONTAINER, BlockId(1), number * CHUNK_BYTES)


def ask(peer: Peer) -> None:
    """Request the root of a tree repeatedly."""
    for _ in range(CALLS):
        peer.summary(CONTAINER)


def ratios(plain: Callable[[], None], secured: Callable[[], None]) -> tuple[float, float]:
    """Return the median ratios of CPU seconds and of time, secured to plain, over pairs of runs
    whose order alternates."""
    for action in (plain, secured):
        action()  # opens connections and fills caches
    cpu, wall = [], []
    for index in range(ROUNDS_DEFAULT):
        pair = {}
        for action in (plain, secured) if index % 2 == 0 else (secured, plain):
            begun = time.process_time(), time.perf_counter()
            action()
            pair[action] = time.process_time() - begun[0], time.perf_counter() - begun[1]
        cpu.append(pair[secured][0] / pair[plain][0])
        wall.append(pair[secured][1] / pair[plain][1])
    return statistics.median(cpu), statistics.median(wall)
