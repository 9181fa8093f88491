"""Limits the connections of a server, so that one client does not exclude others.

gRPC does not distinguish clients, and keeps idle connections. Therefore, a client that connects a
thousand times could exclude all others. The limits are:

- gRPC closes each new connection beyond `connections_max`, from any host.
- If a host has more connections than its share, its idle connections are closed.
- If less than a fifth of all connections is free, idle connections of unknown hosts are closed, and
  after them those of known hosts.

Three kinds of hosts are known: this host, where operators work; the hosts of datanodes that the
control plane knows; and hosts that presented the certificate of a datanode or an operator. Among
the connections of one host, those that were unused for the longest time are closed first. A
connection with a running call is never closed. If a known host has not more connections than its
share, its new connections have some time for their first call.
"""

import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from suture.runtime.loop import RetryAfter, Step

LOOK_S: Final = 1.0
CROWDED_LOOK_S: Final = 0.05  # while places are short: a flood opens hundreds per second
REST: Final = 2  # pause after a check that closed connections, in multiples of its duration
GRACE_S: Final = 2.0  # time for the first call of a new connection
KNOWN_S: Final = 60.0  # interval between queries for the addresses of known datanodes
TRUSTED_COUNT_MAX: Final = 10_000  # hosts remembered because they showed a certificate
OWN_HOSTS: Final = frozenset({"127.0.0.1", "::1"})
SHARE_OF_PEER: Final = 4  # of all connections, one peer may have a quarter
SHARE_FREE: Final = 5  # of all, a fifth is kept free
DESCRIPTORS: Final = "/proc/self/fd"
MAPPED: Final = "::ffff:"  # an IPv4 address on a socket for both versions

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Connection:
    """A connection: its descriptor, the inode number of its socket, the address of the client's
    host, and gRPC's name of the client."""

    fd: int
    inode: str
    host: str
    name: str


class Connections(Collector):
    """The connections to the ports of one process. One worker thread closes connections; any thread
    may record calls."""

    name = "connections"

    def __init__(
        self,
        count_max: int,
        *,
        prefix: str = "suture",
        known: Callable[[], Iterable[str]] = tuple,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the object. `prefix` is the beginning of the names of its metrics.

        `known` returns the addresses of datanodes. It may block, and is called only if there are
        many connections.
        """
        self._prefix = prefix
        self._known_addresses = known
        self._known_hosts: frozenset[str] = frozenset()
        self._known_at_s = -KNOWN_S
        self._trusted: dict[str, None] = {}  # hosts, as gRPC names them
        self._count_max = count_max
        self._monotonic_s = monotonic_s
        self._tickets = count()
        self._calls: dict[int, str] = {}  # connection of each running call, by ticket
        self._used_at_s: dict[str, float] = {}
        self._seen_at_s: dict[str, float] = {}  # by socket
        self._sockets: dict[str, _Connection] = {}  # those found open by the last check
        self.ports: set[int] = set()
        self.count = 0
        self.ended_count = 0

    def begin(self, name: str) -> int:
        """Record that a call has begun on the connection with this name in gRPC. Return a ticket,
        which must be passed to `end`."""
        ticket = next(self._tickets)
        self._calls[ticket] = name
        self._used_at_s[name] = self._monotonic_s()
        return ticket

    def end(self, ticket: int) -> None:
        """Record that the call with this ticket has ended."""
        self._calls.pop(ticket, None)

    def trust(self, name: str) -> None:
        """Record that the caller on the connection with this name is a datanode or an operator, so
        that its host is known."""
        host = name.rpartition(":")[0]
        if host not in self._trusted:
            self._trusted[host] = None
            while len(self._trusted) > TRUSTED_COUNT_MAX:
                self._trusted.pop(next(iter(self._trusted)), None)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics about open and closed connections."""
        yield GaugeMetricFamily(
            f"{self._prefix}_connections",
            "Open connections of callers; 0 while there are few.",
            value=float(self.count),
        )
        yield CounterMetricFamily(
            f"{self._prefix}_connections_closed_total",
            "Idle connections that were closed to make room for others.",
            value=float(self.ended_count),
        )

    def step(self) -> Step:
        """Close idle connections of hosts that have more than their share.

        If few connections are free, also close idle connections of other hosts. Then update the
        addresses of datanodes, if there are many connections.
        """
        if not self.ports:
            return RetryAfter(LOOK_S)
        begun_s = self._monotonic_s()
        share = max(2, self._count_max // SHARE_OF_PEER)
        descriptors = os.listdir(DESCRIPTORS)  # noqa: PTH208 - thousands: a Path each is slow
        if len(descriptors) <= share:
            self.count = 0
            self._used_at_s.clear()
            return RetryAfter(LOOK_S)
        found = list(self._open(descriptors))
        self.count = len(found)
        self._seen_at_s = {one.inode: self._seen_at_s.get(one.inode, begun_s) for one in found}
        present = {one.name for one in found}
        for name in [name for name in list(self._used_at_s) if name not in present]:
            self._used_at_s.pop(name, None)
        by_host: defaultdict[str, list[_Connection]] = defaultdict(list)
        for one in found:
            by_host[one.host].append(one)
        excess = len(found) - (self._count_max - self._count_max // SHARE_FREE)
        ended_count = self._ended_count(by_host, share, excess, begun_s)
        took_s = self._monotonic_s() - begun_s
        if len(found) > share:
            self._refresh_datanode_addresses(begun_s)
        return RetryAfter(max(CROWDED_LOOK_S, REST * took_s) if ended_count else LOOK_S)

    def _ended_count(
        self, by_host: dict[str, list[_Connection]], share: int, excess: int, now_s: float
    ) -> int:
        """Close idle connections, and return the number of closed connections.

        Connections of unknown hosts are closed before those of known hosts, and connections of
        hosts with many connections before those of hosts with few. `excess` is the number of
        connections to close so that a fifth of all connections is free.
        """
        busy = set(self._calls.values())
        ended_count = 0

        def rank(theirs: list[_Connection]) -> tuple[bool, int, float]:
            used_at_s = max(self._used_at_s.get(one.name, 0.0) for one in theirs)
            return self._is_known(theirs[0]), -len(theirs), used_at_s

        for host, theirs in sorted(by_host.items(), key=lambda item: rank(item[1])):
            too_many = max(len(theirs) - share, excess)
            if too_many <= 0:
                continue
            is_spared = len(theirs) <= share and self._is_known(theirs[0])
            grace_s = GRACE_S if is_spared else 0.0
            idle = [
                one
                for one in theirs
                if one.name not in busy and now_s - self._seen_at_s[one.inode] >= grace_s
            ]
            idle.sort(
                key=lambda one: (self._used_at_s.get(one.name, 0.0), self._seen_at_s[one.inode])
            )
            count = self._close(host, idle[:too_many], len(theirs))
            excess -= count
            ended_count += count
        return ended_count

    def _is_known(self, one: _Connection) -> bool:
        host = one.name.rpartition(":")[0]
        return one.host in OWN_HOSTS or one.host in self._known_hosts or host in self._trusted

    def _refresh_datanode_addresses(self, now_s: float) -> None:
        """Update the addresses of the known datanodes. If this fails, keep the previous
        addresses."""
        if now_s - self._known_at_s < KNOWN_S:
            return
        self._known_at_s = now_s
        hosts: set[str] = set()
        for host in {address.rpartition(":")[0].strip("[]") for address in self._known_addresses()}:
            with suppress(OSError, UnicodeError):
                hosts.update(str(found[4][0]) for found in socket.getaddrinfo(host, None))
        self._known_hosts = frozenset(hosts) or self._known_hosts

    def _close(self, host: str, chosen: Sequence[_Connection], open_count: int) -> int:
        ended_count = sum(self._shut(one) for one in chosen)
        if ended_count:
            self.ended_count += ended_count
            log.warning("connections_closed", peer=host, count=ended_count, open_count=open_count)
        return ended_count

    def _open(self, descriptors: Sequence[str]) -> Iterator[_Connection]:
        """Yield the open connections.

        A socket that was found by the previous call is not examined again. Otherwise, this function
        would be too slow for a flood of connections.
        """
        before, self._sockets = self._sockets, {}
        for name in descriptors:
            with suppress(OSError):
                fd, inode = int(name), os.readlink(f"{DESCRIPTORS}/{name}")  # noqa: PTH115
                if not inode.startswith("socket:"):
                    continue
                known = before.get(inode)
                if known is None or known.fd != fd:
                    with socket.socket(fileno=os.dup(fd)) as one:
                        known = self._find_connection(one, fd, inode)
                if known is not None:
                    self._sockets[inode] = known
                    yield known

    def _find_connection(self, one: socket.socket, fd: int, inode: str) -> _Connection | None:
        """Return the connection of a socket. Return None if it is not a connection to one of the
        ports."""
        if one.family not in {socket.AF_INET, socket.AF_INET6}:
            return None
        if one.getsockname()[1] not in self.ports:
            return None
        host, port = one.getpeername()[:2]  # OSError for a listening socket
        host = host.removeprefix(MAPPED)
        name = f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
        return _Connection(fd, inode, host, name)

    def _shut(self, chosen: _Connection) -> bool:
        """Shut down a connection, if its descriptor still belongs to it. Return True if it was shut
        down. gRPC then closes it."""
        with suppress(OSError), socket.socket(fileno=os.dup(chosen.fd)) as one:
            if self._find_connection(one, chosen.fd, chosen.inode) == chosen:
                one.shutdown(socket.SHUT_RDWR)
                return True
        return False
