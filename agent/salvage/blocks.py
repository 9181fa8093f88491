"""Reads a block from its replicas on several volumes, and returns verified bytes and holes.

A hole is a range of the block that cannot be read correctly. Each replica has an index row that
lists the chunks of the block. Replicas with different lists have different versions of the block. A
chunk is read from any replica whose bytes match the checksums in the row. If one version is the
beginning of another version with a later commit id, only the longer version is used. If two
versions can both be read completely, the chunks in which they differ become holes. Chunks without
checksums also become holes, because their bytes cannot be verified.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from agent.salvage.offline_volumes import BlockCopy
from merkle.checksum import fits
from merkle.replica import BlockId, ChecksumType, ChunkInfo
from suture.ec.blockgroup import OrphanGroup, RebuildableGroup, is_stripe_checksum, resolve_group
from suture.ec.cell_codec import rebuild_checked
from suture.ec.scheme import Scheme
from suture.errors import SutureError

NO_CHECKSUM: Final = "no checksum was written with it"
CONTRADICTED: Final = "replicas contradict each other, each by intact rows"


@dataclass(frozen=True, slots=True)
class Hole:
    """A range of a block that cannot be read from any replica, and the reason."""

    offset: int
    length_bytes: int
    why: str


Piece = bytes | Hole


class Reader:
    """Reads one block, chunk by chunk. A chunk that cannot be read correctly is replaced by a
    `Hole`."""

    def __init__(self, copies: Sequence[BlockCopy], scheme: Scheme | None) -> None:
        self._copies = copies
        self._scheme = scheme

    def pieces(self) -> Iterator[Piece]:
        """Yield the verified bytes of the block in the order of offsets, and a `Hole` for each
        other chunk."""
        if self._scheme is not None:
            yield from _group_pieces(self._copies, self._scheme)
            return
        versions = _versions(self._copies)
        if len(versions) > 1:
            whole = [v for v in versions if all(_chunk(c, self._copies) for c in v)]
            versions = whole or versions[:1]
        for chunk in max(versions, key=_end, default=()):  # the longest version
            if all(chunk in version for version in versions):
                failures: list[str] = []
                yield _chunk(chunk, self._copies, failures) or _hole(chunk, failures)
            else:
                yield Hole(chunk.offset, chunk.length_bytes, CONTRADICTED)


def matches(chunks: Sequence[ChunkInfo], data: bytes) -> bool:
    """Return whether `data` has the length of all chunks together and matches all their
    checksums."""
    return _end(chunks) == len(data) and all(
        _is_proven(chunk, data[chunk.offset : chunk.end]) for chunk in chunks
    )


def _versions(copies: Sequence[BlockCopy]) -> list[tuple[ChunkInfo, ...]]:
    """Return the different versions of a block, which are the different lists of chunks in its
    rows.

    The version with the latest commit id comes first. Among versions with the same commit id, the
    version of the most replicas comes first. A version is omitted if it is the beginning of a
    version with a later commit id.
    """

    def version(copy: BlockCopy) -> tuple[int, tuple[ChunkInfo, ...]]:
        return copy.block.bcsid, copy.block.chunks

    def is_outgrown(bcsid: int, chunks: tuple[ChunkInfo, ...]) -> bool:
        later = (copy.block for copy in copies if copy.block.bcsid > bcsid)
        return any(
            len(block.chunks) > len(chunks) and block.chunks[: len(chunks)] == chunks
            for block in later
        )

    ordered = sorted(copies, key=lambda copy: repr(version(copy)))
    counted = [(key, len(list(group))) for key, group in groupby(ordered, key=version)]
    counted.sort(key=lambda one: (one[0][0], one[1]), reverse=True)
    versions = dict.fromkeys(v for (bcsid, v), _count in counted if not is_outgrown(bcsid, v))
    return list(versions)


def _chunk(
    chunk: ChunkInfo, copies: Sequence[BlockCopy], failures: list[str] | None = None
) -> bytes | None:
    """Return a chunk's bytes from the first replica whose bytes match the checksums of the chunk.

    Return None if no replica has such bytes. Add the errors of replicas that cannot be read to
    `failures`.
    """
    if chunk.checksum_type is ChecksumType.NONE:
        return None
    for copy in copies:
        if chunk not in copy.block.chunks:
            continue
        try:
            data = copy.place.read(chunk.offset, chunk.length_bytes)
        except (OSError, SutureError) as error:
            if failures is not None:
                failures.append(f"{copy.volume}: {error}")
            continue
        if _is_proven(chunk, data):
            return data
    return None


def _is_proven(chunk: ChunkInfo, data: bytes) -> bool:
    return chunk.checksum_type is not ChecksumType.NONE and fits(chunk, data)


def _hole(chunk: ChunkInfo, failures: Sequence[str]) -> Hole:
    is_blind = chunk.checksum_type is ChecksumType.NONE
    why = NO_CHECKSUM if is_blind else "no replica has bytes that fit their checksums"
    if failures:
        why = f"no replica that could be read has bytes that fit; not read: {'; '.join(failures)}"
    return Hole(chunk.offset, chunk.length_bytes, why)


def _end(chunks: Sequence[ChunkInfo]) -> int:
    return chunks[-1].end if chunks else 0


def _group_pieces(copies: Sequence[BlockCopy], scheme: Scheme) -> Iterator[Piece]:
    """Yield the data of an erasure-coded block, stripe by stripe. Rebuild missing shards from the
    others."""
    block_id = BlockId(copies[0].block.block_id)
    by_index: dict[int, list[BlockCopy]] = {}
    for copy in copies:
        by_index.setdefault(copy.replica_index, []).append(copy)
    known = {index: _latest(of_index) for index, of_index in by_index.items()}
    agreed = resolve_group(scheme, block_id, {index: copy.block for index, copy in known.items()})
    if isinstance(agreed, OrphanGroup):
        yield Hole(0, 0, agreed.reason)
        return
    for stripe in range(agreed.group.stripe_count):
        yield from _stripe(agreed, stripe, by_index, scheme)


def _latest(copies: Sequence[BlockCopy]) -> BlockCopy:
    return max(copies, key=lambda copy: (copy.block.bcsid, len(copy.block.chunks)))


def _stripe(
    agreed: RebuildableGroup, stripe: int, by_index: dict[int, list[BlockCopy]], scheme: Scheme
) -> Iterator[Piece]:
    group = agreed.group
    wanted = [i for i in range(1, scheme.data_count + 1) if group.cell_bytes(stripe, i)]
    chunks = {i: agreed.chunk(i, stripe) for i in agreed.shards if group.cell_bytes(stripe, i)}
    cells: dict[int, bytes] = {}
    for index in (*wanted, *(i for i in chunks if i not in wanted)):
        if all(i in cells for i in wanted) or index not in chunks:
            continue
        data = _chunk(chunks[index], by_index[index])
        if data is not None:
            cells[index] = data
    at = stripe * scheme.stripe_bytes
    length_bytes = sum(group.cell_bytes(stripe, i) for i in wanted)
    if not is_stripe_checksum(agreed, stripe, chunks):
        yield Hole(at, length_bytes, "shards contradict each other, each by intact rows")
        return
    missing = [i for i in wanted if i not in cells]
    if missing:
        empty = {i: b"" for i in scheme.indexes if not group.cell_bytes(stripe, i)}
        try:
            size_bytes = group.cell_bytes_max(stripe)
            made = rebuild_checked(scheme, {**cells, **empty}, missing, size_bytes)
        except SutureError as error:
            yield Hole(at, length_bytes, f"too few shards are whole: {error}")
            return
        for index, octets in made.items():
            cells[index] = octets.tobytes()[: group.cell_bytes(stripe, index)]
            described = chunks.get(index)
            if described is not None and not _is_proven(described, cells[index]):
                yield Hole(at, length_bytes, "shards contradict each other, each by intact rows")
                return
    yield from (cells[i] for i in wanted)
