"""How long a writer makes its blocks where containers are smaller than they usually are."""

from pathlib import Path
from typing import Any

import pytest

from suture.client.ecwriter import EcWriterSession
from suture.client.file_pieces import BLOCK_BYTES_DEFAULT, SourceFile
from suture.client.writer import WriterSession
from suture.ec.scheme import parse_scheme
from suture.errors import Code, RefusedError
from suture.wire.v1 import scm_pb2

KIB = 1024
MIB = 1024 * KIB
CODED = "rs-3-2-64k"
STRIPE_BYTES = 3 * 64 * KIB


class Full(Exception):
    """Enough was asked."""


class SmallContainers:
    """Takes no block of more than so many bytes; says what it takes, or something else."""

    def __init__(self, bytes_max: int, *, says: object = None) -> None:
        self.bytes_max = bytes_max
        self.says = bytes_max if says is None else says
        self.asked: list[list[int]] = []

    def allocate_blocks(
        self, request: scm_pb2.AllocateBlocksRequest
    ) -> scm_pb2.AllocateBlocksResponse:
        """Refuse what is too long; end the put where it is not."""
        self.asked.append(list(request.sizes))
        assert len(self.asked) < 5
        if max(request.sizes) > self.bytes_max:
            raise RefusedError(Code.INVALID_WRITE_SIZE, "too long", block_bytes_max=self.says)
        raise Full


def asked(scm: SmallContainers, size_bytes: int, scheme: str = "") -> list[list[int]]:
    """Have a file stored that long; return the sizes of blocks that were asked for, each time."""
    control_plane: Any = scm
    nobody: Any = None
    session = (
        EcWriterSession(control_plane, nobody, nobody, scheme=parse_scheme(scheme))
        if scheme
        else WriterSession(control_plane, nobody, nobody)
    )
    with pytest.raises((Full, RefusedError)):
        session.put([SourceFile("k", Path("k"), size_bytes)], replace=False)
    return scm.asked


@pytest.mark.parametrize(
    ("scheme", "bytes_max", "size_bytes", "sizes"),
    [
        ("", 10 * MIB, 12 * MIB, [8 * MIB, 4 * MIB]),  # chunks are of 4 MiB
        ("", 64 * KIB, 200_000, [64 * KIB] * 3 + [200_000 - 3 * 64 * KIB]),
        (CODED, 2 * STRIPE_BYTES + 7, 5 * STRIPE_BYTES, [2 * STRIPE_BYTES] * 2 + [STRIPE_BYTES]),
        (CODED, 1_000, 2_500, [1_000, 1_000, 500]),
    ],
)
def test_block_sizes_are_multiples_of_chunks_or_stripes(
    scheme: str, bytes_max: int, size_bytes: int, sizes: list[int]
) -> None:
    """A part of a stripe costs a whole cell of parity, and a part of a chunk costs a row."""
    assert [[size_bytes], sizes] == asked(SmallContainers(bytes_max), size_bytes, scheme)


@pytest.mark.parametrize("says", ["", "many", "-1", "0", str(BLOCK_BYTES_DEFAULT), str(2**70)])
def test_a_control_plane_that_takes_no_smaller_ones_is_asked_once(says: str) -> None:
    """One of an earlier version does not answer the question. No answer makes a writer repeat it
    for ever.
    """
    assert [[9 * MIB]] == asked(SmallContainers(MIB, says=says), 9 * MIB)
