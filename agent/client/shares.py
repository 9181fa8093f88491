"""Files dealt to writer sessions that work side by side, and stored share by share."""

from collections.abc import Sequence
from typing import Final

from agent.client.file_pieces import Source
from agent.client.writer import Stored, WriterSession
from merkle.replica import CHUNK_BYTES_DEFAULT

ALLOCATION_BATCH: Final = 128  # files whose blocks are asked of the SCM at once


def balanced(sources: Sequence[Source], count: int) -> list[list[Source]]:
    """Deal `sources` to `count` shares of about equal bytes; larger files first."""
    shares: list[list[Source]] = [[] for _ in range(count)]
    loads = [0] * count
    for source in sorted(sources, key=lambda s: (-s.size_bytes, s.key)):
        lightest = loads.index(min(loads))
        shares[lightest].append(source)
        loads[lightest] += source.size_bytes + CHUNK_BYTES_DEFAULT // 64
    return [share for share in shares if share]


def put_share(
    session: WriterSession, share: list[Source], replace: bool, stored: list[Stored]
) -> None:
    """Store one session's share, batch by batch; what is stored is added to `stored`."""
    for start in range(0, len(share), ALLOCATION_BATCH):
        stored += session.put(share[start : start + ALLOCATION_BATCH], replace=replace)
