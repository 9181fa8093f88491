"""Reads a block from its replicas, chunk by chunk. Only verified bytes are returned.

One replica sends chunk after chunk, ahead of the reader, until a chunk fails. The reader then asks
each other replica once for that chunk. The first replica that returns the chunk continues from
there.

After a fault of a replica, the reader asks it last for the following chunks. If a replica does not
answer several consecutive calls, the reader does not ask it again for this block. Otherwise, a dead
host would cost one timeout per chunk.

If the transfer of a small block takes longer than nearly all others, the reader cancels it and asks
another replica. It asks the slow replica again only after all others. This is the hedged request of
Dean and Barroso ("The tail at scale", CACM 2013), except that the first request is cancelled. To
wait for both would require a thread for every read, not only for the slow reads.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

from merkle.replica import BlockId, ContainerId
from suture.client.replica_ranking import DatanodeStats
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.wire.clients.block_peer import BlockPeer
from suture.wire.clients.channel import DatanodesSilent
from suture.wire.clients.response_checks import SMALL_BYTES_MAX
from suture.wire.mapping.blockpieces import Data

SILENT_COUNT_MAX: Final = 3  # consecutive unanswered calls; each is three attempts already
ABSENT: Final = frozenset({Code.CONTAINER_NOT_FOUND, Code.NO_SUCH_BLOCK, Code.BLOCK_NOT_COMMITTED})


@dataclass(slots=True)
class ReplicaSource:
    """A datanode that should have a replica, and its faults while this block was read."""

    datanode_id: str
    source: BlockPeer
    fault_count: int = 0
    silent_count: int = 0
    is_late: bool = False  # dropped because it is much slower than others
    refusal: str = ""  # why it cannot return the block; if set, it is not asked again


@dataclass(slots=True)
class ReplicaBlockReader:
    """Reads a block of the file `key` once. `faults` has an entry (datanode id, text about the
    fault) for each failed datanode."""

    container_id: ContainerId
    block_id: BlockId
    length_bytes: int
    key: str
    holders: list[ReplicaSource]
    conduct: DatanodeStats = field(default_factory=DatanodeStats)
    faults: dict[str, str] = field(default_factory=dict)
    _begun: tuple[ReplicaSource, Iterator[tuple[int, Data]]] | None = None

    def begin(self) -> None:
        """Start the transfer from the first replica before `read` is called. Errors are raised by
        `read`."""
        with suppress(SutureError):
            holder = self._next({}, 0)
            self._begun = holder, self._asked(holder, 0)

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Data]:
        """Yield the data of the block, or its bytes from `start` up to, but not including, `stop`.

        Raise UnavailableError at the first chunk that no replica returns. The message names the
        block, the offset and each replica's answer. The error is a DatanodesSilent if a datanode
        did not answer.
        """
        at = start
        end = self.length_bytes if stop is None else stop
        said: dict[str, str] = {}  # datanode asked -> why it did not return the chunk at `at`
        while at < end:
            holder = self._next(said, at)
            patience_s = self._patience_s(said, at)
            begun_s = perf_counter()
            try:
                for part in self._parts(holder, at, patience_s):
                    at += len(part)
                    said = {}
                    yield part if at <= end else part[: end - at]
                    if at >= end:
                        return  # data sent ahead is not awaited
            except SutureError as error:
                waited_s = perf_counter() - begun_s
                is_silent = isinstance(
                    error, UnavailableError
                )  # count the damage even if the answer came late
                if is_silent and patience_s is not None and waited_s >= patience_s:
                    self.conduct.record_hedge(holder.datanode_id, waited_s)
                    holder.is_late = True
                    continue
                self._record_fault(holder, error)
                said[holder.datanode_id] = str(error)

    def _patience_s(self, said: dict[str, str], at: int) -> float | None:
        """Return how many seconds to wait for the first replica. Return None if there is no limit.

        A large block has no limit, because the datanode sends its data while it is read. `said` has
        the replicas that were already asked for the chunk at `at`.
        """
        if self.length_bytes > SMALL_BYTES_MAX or at or said:
            return None
        if len(self.holders) < 2:
            return None
        for one in self.holders:
            if one.is_late:
                return None
        return self.conduct.patience_s()

    def _next(self, said: dict[str, str], at: int) -> ReplicaSource:
        """Return the replica to ask next for the chunk at the offset `at`.

        `said` has the replicas that were already asked for this chunk. Raise UnavailableError if
        all replicas were asked.
        """
        if not said and self.holders:
            first = self.holders[0]
            if not first.is_late and not first.fault_count:
                return first
        left = [holder for holder in self.holders if holder.datanode_id not in said]
        if left:
            return min(left, key=lambda one: (one.is_late, one.fault_count))
        reasons = "; ".join(f"{who}: {why}" for who, why in said.items())
        is_silent = any(holder.silent_count for holder in self.holders)
        kind = DatanodesSilent if is_silent else UnavailableError
        raise kind(
            Code.UNAVAILABLE,
            f"cannot read {self.key}: no good copy of block {self.block_id} of container "
            f"{self.container_id}, chunk at offset {at}: {reasons or 'no replica is known'}",
            hint=f"suture explain {self.container_id} shows the state of each replica",
            container_id=self.container_id,
            block_id=self.block_id,
            offset=at,
        )

    def _parts(
        self, holder: ReplicaSource, at: int, patience_s: float | None = None
    ) -> Iterator[Data]:
        """Yield the data of the block from this replica, beginning at the offset `at`."""
        if holder.silent_count >= SILENT_COUNT_MAX:
            raise RefusedError(
                Code.INELIGIBLE, "did not answer, and is not asked again for this block"
            )
        if holder.refusal:
            raise RefusedError(Code.INELIGIBLE, holder.refusal)
        end = self.length_bytes
        begun_s: float | None = perf_counter()
        begun, self._begun = self._begun, None
        is_begun = begun is not None and begun[0] is holder and at == 0
        for start, data in begun[1] if begun and is_begun else self._asked(holder, at, patience_s):
            if begun_s is not None:
                self.conduct.record_latency(holder.datanode_id, perf_counter() - begun_s)
                begun_s = None
            holder.silent_count = 0
            stop = start + len(data)
            if start > at or stop > end:
                raise RefusedError(
                    Code.UNABLE_TO_FIND_CHUNK,
                    f"returned bytes {start} to {stop} of {end}, none at {at}",
                )
            if stop <= at:
                continue  # the same chunk, already received
            part = data[at - start :] if at > start else data
            at = stop
            yield part
            if at == end:
                return
        raise RefusedError(Code.UNABLE_TO_FIND_CHUNK, f"has {at} of {end} bytes")

    def _asked(
        self, holder: ReplicaSource, at: int, patience_s: float | None = None
    ) -> Iterator[tuple[int, Data]]:
        return holder.source.parts_from(
            self.container_id, self.block_id, at, self.length_bytes, patience_s=patience_s
        )

    def _record_fault(self, holder: ReplicaSource, error: SutureError) -> None:
        """Record a fault of a replica. Replicas without faults are asked first."""
        holder.fault_count += 1
        self.faults[holder.datanode_id] = str(error)
        if isinstance(error, UnavailableError):
            holder.silent_count += 1
        elif error.code in ABSENT:
            holder.refusal = str(error)
