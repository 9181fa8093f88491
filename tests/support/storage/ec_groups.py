"""Block groups with known content, cell by cell."""

import random
from dataclasses import dataclass

from suture.ec.cell_codec import encode
from suture.ec.geometry import BlockGroup
from suture.ec.scheme import CodecName, Scheme

SMALL_CELL_BYTES = 512
SMALL_SCHEMES = (
    Scheme(CodecName.RS, 3, 2, SMALL_CELL_BYTES),
    Scheme(CodecName.RS, 6, 3, SMALL_CELL_BYTES),
    Scheme(CodecName.RS, 10, 4, SMALL_CELL_BYTES),
    Scheme(CodecName.XOR, 2, 1, SMALL_CELL_BYTES),
)


@dataclass(frozen=True)
class EncodedGroup:
    """A block group with its data, and for each stripe, its cells by index."""

    group: BlockGroup
    data: bytes
    stripes: tuple[dict[int, bytes], ...]


def encoded_group(scheme: Scheme, length_bytes: int, *, seed: int = 1) -> EncodedGroup:
    """Return a block group of pseudo-random data, with its parity cells."""
    group = BlockGroup(scheme, length_bytes)
    data = random.Random(seed).randbytes(length_bytes)
    stripes = []
    for stripe in range(group.stripe_count):
        cells = {}
        at = stripe * scheme.stripe_bytes
        for index in range(1, scheme.data_count + 1):
            cells[index] = data[at : at + group.cell_bytes(stripe, index)]
            at += len(cells[index])
        parity = encode(scheme, list(cells.values()))
        for index, cell in enumerate(parity, start=scheme.data_count + 1):
            cells[index] = bytes(cell)
        stripes.append(cells)
    return EncodedGroup(group, data, tuple(stripes))


def lengths_bytes(scheme: Scheme) -> dict[str, int]:
    """Return lengths of groups with full, partial and mixed stripes, by name."""
    cell, stripe = scheme.cell_bytes, scheme.stripe_bytes
    return {
        "full": 2 * stripe,
        "one byte": 1,
        "less than a cell": cell - 1,
        "one cell": cell,
        "a cell and a byte": cell + 1,
        "all but a byte": stripe - 1,
        "full and a part": stripe + cell + 7,
    }


def cut_group(made: EncodedGroup, stripe_count: int) -> EncodedGroup:
    """Return a block group that has only the first stripes of `made`."""
    group = BlockGroup(made.group.scheme, stripe_count * made.group.scheme.stripe_bytes)
    return EncodedGroup(group, made.data[: group.length_bytes], made.stripes[:stripe_count])
