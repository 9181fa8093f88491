"""Parity scrub: slow background verification of this host's erasure-coded containers.

A scan only shows that a shard has the bytes that were written to it. A comparison of all shards
shows that the shards match each other. The datanode with the lowest shard index verifies the
container, so that each container is verified once. The scrub reads all stripes of the shards and
reports wrong shards. It reads at a fixed low rate, and pauses together with the scans.

The times of verification are not stored. Therefore, all containers are due after a restart.
"""

import logging
import threading
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from typing import Final

import numpy as np
import structlog

from agent.reconstruct.parity_check import ParityReport, verify_parity
from agent.store.replica_store import ReplicaStore
from merkle.checksum_columns import U64s
from merkle.replica import ContainerId, ReplicaState
from suture.ec.rebuild_task import ShardLocation
from suture.ec.scheme import SHARDS_MAX, parse_scheme
from suture.errors import Code, SutureError, UnavailableError
from suture.runtime.clock import Clock
from suture.runtime.loop import Busy, ProgressMarker, RetryAfter, Step
from suture.runtime.memory import trim_heap
from suture.wire.clients.block_peer import NodeAddress
from suture.wire.clients.peer import Peer
from suture.wire.v1 import container_pb2, scm_pb2
from suture.wire.v1 import datanode_pb2 as pb

IDLE_S: Final = 60.0
RETRY_S: Final = 3600.0  # for a container that could not be verified
AGAIN_SHARE: Final = 0.1  # share of the interval after which a skipped container is due again
HELD_CHECK_S: Final = 1.0
FAULTS_TOLD_MAX: Final = 100

Version = tuple[tuple[str, int], ...]  # version of each volume's index

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ParityPolicy:
    """Schedule of the parity scrub.

    Each container is verified once per `interval_s` seconds. 0 disables the scrub.
    """

    interval_s: float
    start_delay_s: float = 0.0


@dataclass(eq=False)
class ParityScrub:
    """Worker of the parity scrub. Any thread may call `status`.

    `info` returns the control plane's record of a container, or raises SutureError. `is_held`
    returns whether background reads must wait now.
    """

    name = "parity-scrub"

    store: ReplicaStore
    datanode_id: str
    policy: ParityPolicy
    _: KW_ONLY
    info: Callable[[ContainerId], scm_pb2.ContainerInfo]
    dial: Callable[[NodeAddress], Peer]
    pace: Callable[[int], None]
    is_held: Callable[[], bool]
    stop: threading.Event
    clock: Clock
    pulse: ProgressMarker

    def __post_init__(self) -> None:
        self._starts_at_s = self.clock.monotonic_s() + self.policy.start_delay_s
        self._executor = ThreadPoolExecutor(SHARDS_MAX, thread_name_prefix="parity")
        self._lock = threading.Lock()
        self._seen: tuple[Version, U64s] | None = None
        self._due_at_s: dict[ContainerId, float] = {}  # a container without an entry is due
        self._verified_at_ms: dict[ContainerId, int] = {}
        self._reports: dict[ContainerId, ParityReport] = {}  # only containers with wrong stripes
        self._current = 0
        self._stripe_count = self._read_bytes = 0

    def step(self) -> Step:
        """Verify the container that has been due for the longest time."""
        delay_s = self._starts_at_s - self.clock.monotonic_s()
        if delay_s > 0:
            return RetryAfter(delay_s)
        if self.is_held():
            return RetryAfter(HELD_CHECK_S)
        container_id = self._next()
        if container_id is None:
            return RetryAfter(min(IDLE_S, self.policy.interval_s * AGAIN_SHARE))
        try:
            shards, scheme = self._shards(container_id)
            if not shards:
                self._put_off(container_id, self.policy.interval_s * AGAIN_SHARE)
                return Busy()
            with self._lock:
                self._current = container_id
            report = verify_parity(
                container_id,
                parse_scheme(scheme),
                shards,
                self.dial,
                self._executor,
                pace=self._wait_for_turn,
            )
        except SutureError as error:
            if self.stop.is_set():
                return RetryAfter(IDLE_S)
            log.warning("parity_verification_failed", container_id=container_id, why=str(error))
            self._put_off(container_id, min(RETRY_S, self.policy.interval_s * AGAIN_SHARE))
            return Busy()
        finally:
            with self._lock:
                self._current = 0
        self._put_off(container_id, self.policy.interval_s)
        self._record_result(report)
        return Busy()

    def close(self) -> None:
        """Stop the threads that read shards. The worker's loop must have ended before."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def status(self) -> pb.ParityScrub:
        """Return the progress of the scrub, and the last result of each container.

        The result has the wrong stripes of the container.
        """
        with self._lock:
            reports = dict(self._reports)
            message = pb.ParityScrub(
                interval_ms=int(self.policy.interval_s * 1000),
                container_id=self._current,
                verified_count=len(self._verified_at_ms),
                oldest_verified_at_ms=min(self._verified_at_ms.values(), default=0),
                stripe_count=self._stripe_count,
                read_bytes=self._read_bytes,
            )
        message.fault_count = sum(len(report.faults) for report in reports.values())
        message.faults.extend(_fault_messages(reports)[:FAULTS_TOLD_MAX])
        return message

    def _next(self) -> ContainerId | None:
        """Return the next container to verify, or None if none is due.

        Forget containers of which this datanode no longer has a closed shard.
        """
        here: set[ContainerId] = set(self._shard_ids().tolist())
        with self._lock:
            for known in (self._verified_at_ms, self._reports):
                for gone in set(known) - here:
                    del known[gone]
        self._due_at_s = {i: at_s for i, at_s in self._due_at_s.items() if i in here}
        now_s = self.clock.monotonic_s()
        due = [i for i in here if self._due_at_s.get(i, 0.0) <= now_s]
        return min(due, key=self._order, default=None)

    def _shard_ids(self) -> U64s:
        """Return the ids of the containers of which this datanode has a closed shard.

        Read the rows again only if an index has changed.
        """
        version = self.store.volume_set.version()
        if self._seen is None or self._seen[0] != version:
            shard_ids = [
                replicas.container_ids[
                    replicas.are({ReplicaState.CLOSED}) & (replicas.replica_indexes > 0)
                ]
                for _, replicas in self.store.columns()
            ]
            self._seen = version, np.concatenate([np.zeros(0, np.uint64), *shard_ids])
            trim_heap()
        return self._seen[1]

    def _order(self, container_id: ContainerId) -> tuple[float, int]:
        """Return the sort key of a container: the time at which it became due, then a hash.

        After a restart, all containers are due at the same time. Because of the hash, datanodes
        then verify them in different orders.
        """
        seed = zlib.crc32(f"{self.datanode_id}:{container_id}".encode())
        return self._due_at_s.get(container_id, 0.0), seed

    def _put_off(self, container_id: ContainerId, delay_s: float) -> None:
        self._due_at_s[container_id] = self.clock.monotonic_s() + delay_s

    def _shards(self, container_id: ContainerId) -> tuple[list[ShardLocation], str]:
        """Return the locations of a container's closed shards, and its erasure code.

        The list is empty if the container is not erasure-coded, or if another datanode has to
        verify it.
        """
        info = self.info(container_id)
        closed = [
            item
            for item in info.replicas
            if item.replica.state == container_pb2.CLOSED and item.node_health == "HEALTHY"
        ]
        ranked = sorted((r.replica.replica_index, r.datanode.datanode_id) for r in closed)
        if not info.scheme or not ranked or ranked[0][1] != self.datanode_id:
            return [], info.scheme
        shards = [
            ShardLocation(r.datanode.datanode_id, r.datanode.address, r.replica.replica_index)
            for r in closed
        ]
        return shards, info.scheme

    def _wait_for_turn(self, length_bytes: int) -> None:
        """Count the bytes read, and wait until more bytes may be read.

        Raise UnavailableError if the agent stops.
        """
        self.pulse.mark()
        with self._lock:
            self._stripe_count += 1
            self._read_bytes += length_bytes
        self.pace(length_bytes)
        while self.is_held() and not self.stop.wait(HELD_CHECK_S):
            self.pulse.mark()
        if self.stop.is_set():
            raise UnavailableError(Code.CANCELLED, "the agent is stopping")

    def _record_result(self, report: ParityReport) -> None:
        container_id = report.container_id
        with self._lock:
            self._verified_at_ms[container_id] = self.clock.now_ms()
            self._reports.pop(container_id, None)
            if report.faults:
                self._reports[container_id] = report
        seriousness = logging.INFO if report.is_clean else logging.WARNING
        log.log(
            logging.ERROR if report.faults else seriousness,
            "parity_verified",
            container_id=container_id,
            stripes=report.stripe_count,
            wrong_stripes=len(report.faults),
            wrong_shards=list(report.wrong),
            unread_stripes=len(report.unread),
            absent_shards=list(report.absent),
            missing_shards=len(report.missing_shards),
            orphans=len(report.orphans),
        )


def _fault_messages(reports: Mapping[ContainerId, ParityReport]) -> list[pb.ParityFault]:
    return [
        pb.ParityFault(
            container_id=container_id,
            local_id=fault.block_id,
            stripe=fault.stripe,
            wrong_shards=fault.wrong,
        )
        for container_id, report in sorted(reports.items())
        for fault in report.faults
    ]
