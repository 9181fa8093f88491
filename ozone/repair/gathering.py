"""Collects the bytes of a damaged chunk: from one peer, or window by window from all peers.

A chunk without checksums cannot be verified. Its bytes are accepted only if every peer was read, at
least two peers have the chunk, and all of these have the same bytes. Thread-safe.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from agent.plan.actions import PeerId
from agent.reconcile.fetch import FetchResult, PeerSources
from agent.store.files import blockfile
from merkle.replica import BlockId, ContainerId
from ozone.repair.peer import ALGORITHM, DamagedBlocksPeer
from ozone.repair.proposal import RepairTarget
from ozone.repair.windows import Assembly
from suture.errors import SutureError, UnavailableError

AGREEING_MIN: Final = 2  # minimum number of peers with equal bytes, without checksums
LOCAL: Final = "here"


@dataclass(frozen=True, slots=True)
class GatheredChunk:
    """The bytes of a chunk, and the names of their sources.

    If there is no source, `data` is None and `message` has the reason. `is_unknown` is True if a
    peer that was not read may have the bytes.
    """

    data: bytes | None
    sources: tuple[str, ...] = ()
    message: str = ""
    is_unknown: bool = False


class Gatherer:
    """Collects chunks from the peers of one repair and from the local replica."""

    def __init__(
        self,
        container_id: ContainerId,
        peers: Mapping[PeerId, DamagedBlocksPeer],
        chunks: Path,
        *,
        silent: Collection[PeerId] = (),
    ) -> None:
        """Create a gatherer.

        `peers` are the peers that have answered, and `silent` those that have not. `chunks` is the
        directory of the local block files.
        """
        self._peers = peers
        self._silent = silent
        self._chunks = chunks
        self._sources = PeerSources(peers, container_id, ALGORITHM)

    def gather(self, target: RepairTarget) -> GatheredChunk:
        """Return the bytes of a damaged chunk.

        They come from one peer, or are assembled from windows of all replicas.
        """
        if not target.has_checksums:
            return self._agreed(target)
        message = target.why
        if target.wanted is not None:
            answer = self._sources.fetch(target.block_id, target.wanted)
            if answer.chunk is not None:
                return GatheredChunk(answer.data, (answer.peer_id,))
            message = _failure_text(answer)
        return self._assembled(target, message)

    def _agreed(self, target: RepairTarget) -> GatheredChunk:
        """Return the bytes of a chunk without checksums, if the peers agree.

        At least two peers must have the chunk, and all peers that have it must have the same bytes.
        """
        if target.wanted is None:
            return GatheredChunk(None, message=target.why)
        found: dict[PeerId, bytes] = {}
        unread = set(self._silent)
        for peer_id in target.wanted.sources:
            answer = self._sources.fetch(
                target.block_id, replace(target.wanted, sources=(peer_id,))
            )
            if answer.chunk is not None:
                found[peer_id] = answer.data
            else:
                unread |= _unreached(answer)
        if len(set(found.values())) > 1:
            who = ", ".join(sorted(found))
            return GatheredChunk(None, message=f"no checksums, and peers differ: {who}")
        if unread or len(found) < AGREEING_MIN:
            return GatheredChunk(
                None,
                message=f"no checksums: {AGREEING_MIN} peers must have the same bytes, and no "
                f"other peer others{_not_read(unread)}",
                is_unknown=bool(unread),
            )
        return GatheredChunk(next(iter(found.values())), tuple(sorted(found)))

    def _assembled(self, target: RepairTarget, message: str) -> GatheredChunk:
        """Return the chunk, assembled from windows that match their checksums.

        The windows come from the local replica and from all peers.
        """
        chunk = target.chunk
        assembly = Assembly(chunk)
        offers = {LOCAL: self._local_pieces(target)}
        for peer_id, peer in sorted(self._peers.items()):
            offers[peer_id] = _peer_pieces(peer, target, assembly)
        used = []
        failures = [message] if message else []
        unread = {*self._silent, *self._silent_about(target.block_id)}
        for name, pieces in offers.items():
            taken_bytes = 0
            try:
                for start, data in pieces:
                    taken_bytes += assembly.add_windows(start, data)
            except SutureError as error:
                failures.append(f"{name}: {error}")
                unread.add(name)
            if taken_bytes:
                used.append(name)
        left = list(assembly.missing())
        if left:
            count = sum(end - start for start, end in left)
            where = f"in none that was read{_not_read(unread)}" if unread else "nowhere"
            failures.append(f"{count} of {chunk.length_bytes} bytes fit {where}")
            return GatheredChunk(None, message="; ".join(failures), is_unknown=bool(unread))
        return GatheredChunk(assembly.data(), tuple(used))

    def _silent_about(self, block_id: BlockId) -> list[PeerId]:
        return [name for name, peer in self._peers.items() if peer.is_silent_about(block_id)]

    def _local_pieces(self, target: RepairTarget) -> Iterator[tuple[int, bytes]]:
        """Yield (start in the chunk, bytes) of the pieces of the chunk on the local disk.

        Yield the complete chunk or, if its read fails, each window that can be read.
        """
        path, chunk = self._chunks / f"{target.block_id}.block", target.chunk

        def read(start: int, length_bytes: int) -> tuple[int, bytes]:
            return start, blockfile.read_past_cache(path, chunk.offset + start, length_bytes)

        try:
            yield read(0, chunk.length_bytes)
        except FileNotFoundError:
            return
        except OSError:
            window_bytes = chunk.bytes_per_checksum
            for start in range(0, chunk.length_bytes, window_bytes):
                with suppress(OSError):  # a lost sector: another replica may have its window
                    yield read(start, min(window_bytes, chunk.length_bytes - start))


def _peer_pieces(
    peer: DamagedBlocksPeer, target: RepairTarget, assembly: Assembly
) -> Iterator[tuple[int, bytes]]:
    """Read each range that the assembly still lacks from a peer.

    Yield (start in the chunk, bytes).
    """
    for start, end in list(assembly.missing()):
        at = target.chunk.offset + start
        if peer.reaches(target.block_id, at + end - start):
            yield start, peer.read_unverified(target.block_id, at, end - start)


def _unreached(answer: FetchResult) -> set[PeerId]:
    """Return the peers that could not be reached. It is unknown if these peers have the chunk."""
    return {one.peer_id for one in answer.failures if isinstance(one.error, UnavailableError)}


def _not_read(names: Collection[PeerId]) -> str:
    return f"; not read: {', '.join(sorted(names))}" if names else ""


def _failure_text(answer: FetchResult) -> str:
    return "; ".join(f"{failure.peer_id}: {failure.error}" for failure in answer.failures)
