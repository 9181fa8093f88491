"""Files divided among parallel writer sessions, and stored share by share."""

from collections.abc import Iterator, Sequence
from typing import Final

from merkle.replica import CHUNK_BYTES_DEFAULT
from suture.client.file_pieces import SourceFile, piece_count
from suture.client.writer import ALLOCATION_BLOCKS_MAX, StoredFile, WriterSession
from suture.wire.clients.message_groups import in_groups

ALLOCATION_BATCH: Final = 128  # files whose blocks are requested from the SCM at once


def balance_shares(sources: Sequence[SourceFile], count: int) -> list[list[SourceFile]]:
    """Divide `sources` into `count` shares of about equal bytes, larger files first."""
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
    """Store one session's share, batch by batch; add the stored files to `stored`."""
    for batch in batches(share, session.block_bytes):
        stored += session.put(batch, replace=replace)


def batches(share: Sequence[SourceFile], block_bytes: int) -> Iterator[list[SourceFile]]:
    """Yield the files in order, in batches whose blocks are allocated at once; a file with more
    blocks than that is a batch of its own."""
    return in_groups(
        share,
        lambda source: piece_count(source, block_bytes),
        ALLOCATION_BLOCKS_MAX,
        ALLOCATION_BATCH,
    )
