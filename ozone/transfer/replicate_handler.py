"""Copies containers as Ozone's storage container manager orders, in the same way as Ozone.

    replicate, with a target    take a shared lease, and upload the archive, verifying each chunk
    replicate, with sources     try the sources in random order; import the first complete download

A command runs in the agent's task pool. If it is stopped, reaches its deadline or makes no progress
for too long, the copy fails and the target keeps nothing. If the sender fails, it cancels the
stream instead of closing it, because Ozone treats a closed stream as a complete archive.
"""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

from agent.store.index.facts import ReplicaFacts
from agent.store.replica_store import ReplicaStore
from agent.transfer.replicate import FINISH_S, LEFT_S_MIN, STALL_S, StallWatch
from merkle.replica import ContainerId
from ozone.transfer.calls import ArchivePeer, sent_parts
from ozone.transfer.incoming import ArchiveImporter
from ozone.transfer.messages import Compression
from ozone.transfer.outgoing import DAMAGED, ArchiveExport
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.memory import trim_heap
from suture.runtime.ports import Leases
from suture.wire.mapping import codec
from suture.wire.security.tls import Security
from suture.wire.v1 import scm_pb2

POLL_S: Final = 0.2
SOURCES_MAX: Final = 64

Stop = Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerReplicator:
    """Executes copy commands of Ozone's SCM.

    `executor` runs one thread per fetch. `request_scan` requests a scan of a replica, with the
    reason as its second argument.
    """

    store: ReplicaStore
    leases: Leases
    importer: ArchiveImporter
    executor: Executor
    security: Security
    compression: Compression
    monotonic_s: Callable[[], float]
    request_scan: Callable[[ContainerId, str], None]
    stall_s: float = STALL_S
    finish_s: float = FINISH_S

    def copy(
        self, command: scm_pb2.ReplicateCommand, stop: Stop, timeout_s: float
    ) -> scm_pb2.ReplicateOutcome:
        """Send a replica to the target of a command, or fetch it from one of the command's sources.

        Raise SutureError if the copy fails.
        """
        container_id = codec.parse_container_id(command.container_id)
        begun_s = self.monotonic_s()
        try:
            if command.target.address:
                outcome = self._push(container_id, command.target.address, stop, timeout_s)
            else:
                addresses = [source.address for source in command.sources]
                index = command.replica_index
                outcome = self._fetch(container_id, index, addresses, stop, timeout_s)
        finally:
            trim_heap()
        outcome.duration_ms = int((self.monotonic_s() - begun_s) * 1000)
        return outcome

    def _push(
        self, container_id: ContainerId, address: str, stop: Stop, timeout_s: float
    ) -> scm_pb2.ReplicateOutcome:
        with self.leases.share(container_id):
            export = ArchiveExport(self.store, container_id)
            facts = export.check()
            sending = _OutgoingArchive(
                sent_parts(
                    container_id, export.stream(self.compression), self.compression,
                    facts.used_bytes,
                ), stop
            )  # fmt: skip
            watch = self._watch(sending)
            try:
                with ArchivePeer(address, self.security) as peer:
                    peer.push(
                        sending.parts(),
                        timeout_s=timeout_s,
                        must_end=lambda: sending.failure is not None or stop() or watch(),
                    )
            except SutureError as error:
                self._tell(container_id, sending.failure)
                raise sending.failure or watch.reason(address) or error from error
            finally:
                sending.let_go()
        return scm_pb2.ReplicateOutcome(
            result="imported", bytes_sent=sending.sent_bytes, block_count=facts.block_count
        )

    def close(self) -> None:
        """Wait for running fetches, drop waiting ones, and stop the threads."""
        self.executor.shutdown(wait=True, cancel_futures=True)

    def _tell(self, container_id: ContainerId, failure: SutureError | None) -> None:
        """Request a scan of the replica if its data does not match its rows.

        This is the case if `failure` reports a chunk that does not match its row.
        """
        if failure is not None and failure.code is Code.CHECKSUM_MISMATCH:
            self.request_scan(container_id, DAMAGED)

    def _fetch(
        self,
        container_id: ContainerId,
        index: int,
        addresses: list[str],
        stop: Stop,
        timeout_s: float,
    ) -> scm_pb2.ReplicateOutcome:
        """Fetch a container from the sources in random order, until one sends it completely."""
        if not 1 <= len(addresses) <= SOURCES_MAX:
            raise codec.malformed(
                "replicate.sources", f"are {len(addresses)}, possible are 1..{SOURCES_MAX}"
            )
        ends_at_s = self.monotonic_s() + timeout_s
        failures: list[SutureError] = []
        for address in random.sample(addresses, len(addresses)):
            self._check_absent(container_id)
            left_s = max(ends_at_s - self.monotonic_s(), LEFT_S_MIN)
            try:
                facts = self._fetch_from(container_id, index, address, stop, left_s)
            except SutureError as error:
                failures.append(error)
                if stop() or self.monotonic_s() >= ends_at_s:
                    break
                continue
            return scm_pb2.ReplicateOutcome(result="imported", block_count=facts.block_count)
        last = failures[-1]
        raise type(last)(last.code, "; ".join(map(str, failures)))

    def _check_absent(self, container_id: ContainerId) -> None:
        try:
            self.store.replica(container_id)
        except RefusedError as error:
            if error.code is Code.CONTAINER_NOT_FOUND:
                return
            raise
        raise RefusedError(Code.CONTAINER_EXISTS, f"container {container_id} already exists here")

    def _fetch_from(
        self, container_id: ContainerId, index: int, address: str, stop: Stop, timeout_s: float
    ) -> ReplicaFacts:
        with ArchivePeer(address, self.security) as peer:
            arriving = _IncomingArchive(
                peer.pull(container_id, self.compression, timeout_s=timeout_s)
            )
            watch = self._watch(arriving)
            work = partial(
                self.importer.receive,
                container_id,
                arriving.data(),
                self.compression,
                replica_index=index,
            )
            received: Future[ReplicaFacts] = self.executor.submit(work)
            while not _has_ended(received):
                if not arriving.is_finished and (stop() or watch()):
                    peer.hang_up()
                    break
            try:
                return received.result()  # the import may have completed nevertheless
            except SutureError as error:
                if stop():
                    raise UnavailableError(Code.CANCELLED, "the transfer was stopped") from error
                raise watch.reason(address) or error from error

    def _watch(self, transfer: "_OutgoingArchive | _IncomingArchive") -> "_Watch":
        return _Watch(
            StallWatch(transfer, self.monotonic_s, self.stall_s, self.finish_s), self.stall_s
        )


class _Watch:
    """Detects a transfer that makes no progress.

    A call returns True if the transfer must be ended.
    """

    def __init__(self, watch: StallWatch, stall_s: float) -> None:
        self._watch = watch
        self._stall_s = stall_s

    def __call__(self) -> bool:
        return self._watch.has_stalled()

    def reason(self, address: str) -> SutureError | None:
        """Return the error for a transfer without progress.

        Return None if the transfer made progress.
        """
        if not self._watch.stalled:
            return None
        return UnavailableError(
            Code.UNAVAILABLE, f"datanode {address}: no data for {self._stall_s:g} s"
        )


class _OutgoingArchive:
    """The parts of an archive that is being sent. A gRPC thread reads them."""

    def __init__(self, parts: Iterator[bytes], stop: Stop) -> None:
        self._parts = parts
        self._stop = stop
        self._released: SimpleQueue[None] = SimpleQueue()
        self.failure: SutureError | None = None
        self.is_finished = False
        self.parts_count = 0
        self.sent_bytes = 0

    def parts(self) -> Iterator[bytes]:
        """Yield the parts of the archive.

        If a part cannot be read, keep the stream open until the call is cancelled, because the
        receiver would treat the end of the stream as the end of the archive.
        """
        try:
            for part in self._parts:
                if self._stop():
                    raise UnavailableError(Code.CANCELLED, "the transfer was stopped")
                self.parts_count += 1
                self.sent_bytes += len(part)
                yield part
            self.is_finished = True
        except SutureError as error:
            self.failure = error
            self._released.get()

    def let_go(self) -> None:
        """End the stream after a failure, so that its gRPC thread does not wait any longer."""
        self._released.put(None)


class _IncomingArchive:
    """The bytes of an archive that is being received, and the number of received pieces."""

    def __init__(self, data: Iterator[bytes]) -> None:
        self._data = data
        self.is_finished = False
        self.parts_count = 0

    def data(self) -> Iterator[bytes]:
        """Yield the pieces as they arrive, and count them."""
        for piece in self._data:
            self.parts_count += 1
            yield piece
        self.is_finished = True


def _has_ended(future: "Future[ReplicaFacts]") -> bool:
    """Wait at most `POLL_S` seconds for the end of the work. Return whether it has ended."""
    ended: SimpleQueue[None] = SimpleQueue()
    future.add_done_callback(lambda _: ended.put(None))
    try:
        ended.get(timeout=POLL_S)
    except Empty:
        return False
    return True
