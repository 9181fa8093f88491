"""Computes the shard, the stripe and the cell of each byte of a block group.

In this example, each column is a shard, and each row is a stripe. The group has the code rs-3-2 and
10 cells of data; `p` is a parity cell. In the last stripe, a parity cell is as long as the longest
data cell.

              index 1   index 2   index 3   index 4   index 5
    stripe 0  [ c0  ]   [ c1  ]   [ c2  ]   [ p   ]   [ p   ]
    stripe 1  [ c3  ]   [ c4  ]   [ c5  ]   [ p   ]   [ p   ]
    stripe 2  [ c6  ]   [ c7  ]   [ c8  ]   [ p   ]   [ p   ]
    stripe 3  [c9]      (empty)   (empty)   [p ]      [p ]

A datanode stores a shard as one block. The chunks of the block are the cells of the shard in order,
without gaps. The rules are Ozone's. No I/O.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from merkle.replica import BLOCK_BYTES_MAX, CHUNKS_PER_BLOCK_MAX
from suture.ec.scheme import Scheme
from suture.errors import Code, RefusedError


@dataclass(frozen=True, slots=True)
class CellSpan:
    """A range of bytes in one cell: `length_bytes` bytes from `offset` in the cell."""

    stripe: int
    index: int
    offset: int
    length_bytes: int


@dataclass(frozen=True, slots=True)
class BlockGroup:
    """A block group with `length_bytes` bytes of data, distributed by the code `scheme`."""

    scheme: Scheme
    length_bytes: int

    def __post_init__(self) -> None:
        length_max_bytes = self.scheme.data_count * BLOCK_BYTES_MAX
        if not 0 <= self.length_bytes <= length_max_bytes:
            raise RefusedError(
                Code.MALFORMED_REQUEST,
                f"a block group of {self.length_bytes} bytes is not within 0..{length_max_bytes}",
            )
        if self.stripe_count > CHUNKS_PER_BLOCK_MAX:
            raise RefusedError(
                Code.MALFORMED_REQUEST,
                f"{self.stripe_count} stripes of {self.scheme} are more than the "
                f"{CHUNKS_PER_BLOCK_MAX} chunks a block may have",
            )

    @property
    def stripe_count(self) -> int:
        """Number of stripes. The last stripe may be partial."""
        return -(-self.length_bytes // self.scheme.stripe_bytes)

    def cell_bytes(self, stripe: int, index: int) -> int:
        """Return the length of a cell in bytes. Return 0 if the group ends before the cell."""
        place = 0 if self.scheme.is_parity(index) else index - 1
        start = stripe * self.scheme.stripe_bytes + place * self.scheme.cell_bytes
        return max(0, min(self.scheme.cell_bytes, self.length_bytes - start))

    def cell_bytes_max(self, stripe: int) -> int:
        """Return the length in bytes of the longest cell in a stripe. Other cells are padded to it
        for computations."""
        return self.cell_bytes(stripe, 1)

    def shard_bytes(self, index: int) -> int:
        """Return the length in bytes of the shard with this index."""
        whole_stripes, rest_bytes = divmod(self.length_bytes, self.scheme.stripe_bytes)
        last = self.cell_bytes(whole_stripes, index) if rest_bytes else 0
        return whole_stripes * self.scheme.cell_bytes + last

    def indexes(self, stripe: int) -> tuple[int, ...]:
        """Return the indexes of the shards whose cell in a stripe is not empty."""
        return tuple(i for i in self.scheme.indexes if self.cell_bytes(stripe, i))

    def spans(self, offset: int, length_bytes: int) -> Iterator[CellSpan]:
        """Yield the ranges of cells that have `length_bytes` bytes of the group's data from
        `offset`, in order."""
        at, end = offset, min(offset + length_bytes, self.length_bytes)
        while at < end:
            stripe, within_stripe = divmod(at, self.scheme.stripe_bytes)
            place, within_cell = divmod(within_stripe, self.scheme.cell_bytes)
            step_bytes = min(self.scheme.cell_bytes - within_cell, end - at)
            yield CellSpan(stripe, place + 1, within_cell, step_bytes)
            at += step_bytes
