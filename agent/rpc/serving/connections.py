"""The connections of a server: one peer does not keep others from having any.

    gRPC closes what is beyond `connections_max` when it comes ─ whoever that is
    every second: a peer with more than its share, or few places left
        ─► the idle ones of the peer with most are ended, first what was not used for longest

gRPC knows no peers, and takes an idle connection for as good as any. So a client that connects a
thousand times locked everybody out. Here a fifth of the places is kept free for whoever comes next:
a datanode that restarts, an operator. A connection with a call under way is never ended, nor is one
before it could make a call.
"""

import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.runtime.loop import Step, Throttled

LOOK_S: Final = 1.0
GRACE_S: Final = 2.0  # for the first call of a new connection
SHARE_OF_PEER: Final = 4  # of all connections, one peer has a quarter
SHARE_FREE: Final = 5  # of all, a fifth is kept free
DESCRIPTORS: Final = Path("/proc/self/fd")
MAPPED: Final = "::ffff:"  # an IPv4 address where a socket takes both

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Open:
    """A connection: its descriptor, its socket's number, the peer's host, and as gRPC names it."""

    fd: int
    inode: str
    host: str
    name: str


class Connections(Collector):
    """The connections to the ports of one process: a worker, which any thread tells of calls.

    Names of its metrics begin with `prefix`.
    """

    name = "connections"

    def __init__(
        self,
        count_max: int,
        *,
        prefix: str = "suture",
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prefix = prefix
        self._count_max = count_max
        self._monotonic_s = monotonic_s
        self._tickets = count()
        self._calls: dict[int, str] = {}  # under way: the connection, by ticket
        self._used_at_s: dict[str, float] = {}
        self._seen_at_s: dict[str, float] = {}  # by socket
        self.ports: set[int] = set()
        self.count = 0
        self.ended_count = 0

    def begin(self, name: str) -> int:
        """Note a call on a connection, named as gRPC does; return the ticket for `end`."""
        ticket = next(self._tickets)
        self._calls[ticket] = name
        self._used_at_s[name] = self._monotonic_s()
        return ticket

    def end(self, ticket: int) -> None:
        """Note the end of a call."""
        self._calls.pop(ticket, None)

    def collect(self) -> Iterator[Metric]:
        """Yield both metrics."""
        yield GaugeMetricFamily(
            f"{self._prefix}_connections",
            "Connections of callers; 0 while there are few.",
            value=float(self.count),
        )
        yield CounterMetricFamily(
            f"{self._prefix}_connections_ended",
            "Idle connections that were ended, so that others find a place.",
            value=float(self.ended_count),
        )

    def step(self) -> Step:
        """Look whether a peer has more than its share, or whether few places are left."""
        share = max(2, self._count_max // SHARE_OF_PEER)
        descriptors = list(DESCRIPTORS.iterdir())
        if len(descriptors) <= share:
            self.count = 0
            self._used_at_s.clear()
            return Throttled(LOOK_S)
        found = list(self._open(descriptors))
        self.count = len(found)
        now_s = self._monotonic_s()
        self._seen_at_s = {one.inode: self._seen_at_s.get(one.inode, now_s) for one in found}
        present = {one.name for one in found}
        busy = set(self._calls.values())
        for name in [name for name in list(self._used_at_s) if name not in present]:
            self._used_at_s.pop(name, None)
        by_host: defaultdict[str, list[_Open]] = defaultdict(list)
        for one in found:
            by_host[one.host].append(one)
        room = self._count_max - self._count_max // SHARE_FREE
        excess = len(found) - room
        for host, theirs in sorted(by_host.items(), key=lambda item: -len(item[1])):
            too_many = max(len(theirs) - share, excess)
            if too_many <= 0:
                break
            idle = [
                one
                for one in theirs
                if one.name not in busy and now_s - self._seen_at_s[one.inode] >= GRACE_S
            ]
            idle.sort(
                key=lambda one: (self._used_at_s.get(one.name, 0.0), self._seen_at_s[one.inode])
            )
            excess -= self._close(host, idle[:too_many], len(theirs))
        return Throttled(LOOK_S)

    def _close(self, host: str, chosen: Sequence[_Open], open_count: int) -> int:
        ended_count = sum(self._shut(one) for one in chosen)
        if ended_count:
            self.ended_count += ended_count
            log.warning("connections_ended", peer=host, count=ended_count, open_count=open_count)
        return ended_count

    def _open(self, descriptors: Sequence[Path]) -> Iterator[_Open]:
        for path in descriptors:
            with suppress(OSError):
                inode = str(path.readlink())
                if inode.startswith("socket:"):
                    fd = int(path.name)
                    with socket.socket(fileno=os.dup(fd)) as one:
                        known = self._known(one, fd, inode)
                    if known is not None:
                        yield known

    def _known(self, one: socket.socket, fd: int, inode: str) -> _Open | None:
        """Return what a socket is; None: it is no connection to one of our ports."""
        if one.family not in {socket.AF_INET, socket.AF_INET6}:
            return None
        if one.getsockname()[1] not in self.ports:
            return None
        host, port = one.getpeername()[:2]  # a socket that listens has none: OSError
        host = host.removeprefix(MAPPED)
        name = f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
        return _Open(fd, inode, host, name)

    def _shut(self, chosen: _Open) -> bool:
        """End a connection, if its descriptor is that one's still; gRPC notices, and closes it."""
        with suppress(OSError), socket.socket(fileno=os.dup(chosen.fd)) as one:
            if self._known(one, chosen.fd, chosen.inode) == chosen:
                one.shutdown(socket.SHUT_RDWR)
                return True
        return False
