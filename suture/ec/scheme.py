"""Erasure codes by name. For example, `rs-6-3-1024k` is Reed-Solomon with 6 data and 3 parity
shards.

The shards have indexes from 1: first the data shards, then the parity shards (Ozone's replica
index).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from merkle.replica import CHUNK_BYTES_MAX, WINDOW_BYTES_MIN
from suture.errors import Code, RefusedError

CELL_BYTES_DEFAULT: Final = 1024**2
CELL_BYTES_MIN: Final = WINDOW_BYTES_MIN
CELL_BYTES_MAX: Final = CHUNK_BYTES_MAX  # a cell is written and read as one chunk
SHARDS_MAX: Final = 32  # the highest replica index of the wire and the store

assert CELL_BYTES_MIN <= CELL_BYTES_DEFAULT <= CELL_BYTES_MAX

_NAME: Final = re.compile(r"(rs|xor)-(\d{1,2})-(\d{1,2})(?:-(\d{1,5})k)?", re.IGNORECASE)


class CodecName(StrEnum):
    """Names of the supported kinds of erasure codes, as in Ozone."""

    RS = "rs"
    XOR = "xor"


@dataclass(frozen=True, slots=True)
class Scheme:
    """An erasure code with `data_count` data shards, `parity_count` parity shards, and cells of
    `cell_bytes` bytes."""

    codec: CodecName
    data_count: int
    parity_count: int
    cell_bytes: int = CELL_BYTES_DEFAULT

    def __post_init__(self) -> None:
        if self.data_count < 1 or self.parity_count < 1 or self.shard_count > SHARDS_MAX:
            raise _malformed(self, f"needs data, parity, and at most {SHARDS_MAX} shards")
        if self.codec is CodecName.XOR and self.parity_count != 1:
            raise _malformed(self, "xor has exactly one parity shard")
        if not CELL_BYTES_MIN <= self.cell_bytes <= CELL_BYTES_MAX:
            raise _malformed(
                self,
                f"a cell of {self.cell_bytes} bytes is not within "
                f"{CELL_BYTES_MIN}..{CELL_BYTES_MAX} bytes",
            )

    @property
    def shard_count(self) -> int:
        """Number of data and parity shards of a block group."""
        return self.data_count + self.parity_count

    @property
    def stripe_bytes(self) -> int:
        """Number of data bytes in a complete stripe."""
        return self.data_count * self.cell_bytes

    @property
    def indexes(self) -> range:
        """The indexes of all shards in ascending order, from 1."""
        return range(1, self.shard_count + 1)

    def is_parity(self, index: int) -> bool:
        """Return True if the shard with this index is a parity shard."""
        return index > self.data_count

    def checked(self, indexes: Iterable[int]) -> tuple[int, ...]:
        """Return the indexes in ascending order, without duplicates. Raise RefusedError if the code
        does not have one of them."""
        found = tuple(sorted(set(indexes)))
        for index in found:
            if index not in self.indexes:
                raise RefusedError(
                    Code.MALFORMED_REQUEST,
                    f"replica index {index} is not within 1..{self.shard_count} of {self}",
                )
        return found

    def __str__(self) -> str:
        whole_kib, rest_bytes = divmod(self.cell_bytes, 1024)
        cell = f"{whole_kib}k" if not rest_bytes else f"{self.cell_bytes} bytes"
        return f"{self.codec}-{self.data_count}-{self.parity_count}-{cell}"


RS_3_2: Final = Scheme(CodecName.RS, 3, 2)
RS_6_3: Final = Scheme(CodecName.RS, 6, 3)
RS_10_4: Final = Scheme(CodecName.RS, 10, 4)
XOR_2_1: Final = Scheme(CodecName.XOR, 2, 1)
OFFERED: Final = (RS_3_2, RS_6_3, RS_10_4, XOR_2_1)
"""The erasure codes that Ozone offers. Other numbers of shards also work."""


def parse_scheme(text: str) -> Scheme:
    """Return the erasure code with the name `text`. The default cell size is 1024k. Raise
    RefusedError if the name is invalid or the code is not supported."""
    match = _NAME.fullmatch(text)
    if match is None:
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            f"invalid erasure code {text!r}",
            hint="for example " + ", ".join(str(scheme) for scheme in OFFERED),
        )
    codec, data, parity, cell_kib = match.groups()
    cell_bytes = int(cell_kib) * 1024 if cell_kib else CELL_BYTES_DEFAULT
    return Scheme(CodecName(codec.lower()), int(data), int(parity), cell_bytes)


def _malformed(scheme: Scheme, what: str) -> RefusedError:
    name = f"{scheme.codec}-{scheme.data_count}-{scheme.parity_count}"
    return RefusedError(Code.MALFORMED_REQUEST, f"erasure code {name}: {what}")
