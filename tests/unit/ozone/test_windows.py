"""Chunks put together of the windows of damaged ones."""

import hashlib

import pytest

from merkle.replica import ChecksumType, ChunkInfo
from ozone.repair.windows import Assembly, fits_twice

WINDOW_BYTES = 1000
DATA = bytes(range(256)) * 17  # 4352 bytes: five windows, the last one short
CHUNK = ChunkInfo(
    8192,
    len(DATA),
    ChecksumType.SHA256,
    WINDOW_BYTES,
    b"".join(
        hashlib.sha256(DATA[at : at + WINDOW_BYTES]).digest()
        for at in range(0, len(DATA), WINDOW_BYTES)
    ),
)


def damaged(*offsets: int) -> bytes:
    """Return the chunk's bytes with some of them wrong."""
    data = bytearray(DATA)
    for offset in offsets:
        data[offset] ^= 1
    return bytes(data)


def test_bytes_fit_only_as_they_were_written() -> None:
    """One flipped bit or one missing byte is detected."""
    assert fits_twice(CHUNK, DATA)
    assert not fits_twice(CHUNK, damaged(4351))
    assert not fits_twice(CHUNK, DATA[:-1])


def test_without_checksums_only_the_length_is_known() -> None:
    """
    Any bytes of the right number fit.
    """
    chunk = ChunkInfo(0, 3, ChecksumType.NONE, 0, b"")

    assert fits_twice(chunk, b"abc")
    assert not fits_twice(chunk, b"ab")


def test_a_chunk_that_is_damaged_everywhere_is_whole_together() -> None:
    """
    Each copy lacks another window.
    """
    assembly = Assembly(CHUNK)

    assembly.add_windows(0, damaged(0, 1500))
    assert assembly.data() is None
    assert [(0, 2000)] == list(assembly.missing())
    assembly.add_windows(0, damaged(1999)[:2000])
    assert [(1000, 2000)] == list(assembly.missing())
    assembly.add_windows(1000, DATA[1000:2000])

    assert DATA == assembly.data()


def test_a_window_that_is_wrong_everywhere_stays_missing() -> None:
    """
    Nothing that does not fit is taken, however often it is offered.
    """
    assembly = Assembly(CHUNK)

    assert 4000 == assembly.add_windows(0, damaged(4351))
    assert 0 == assembly.add_windows(0, damaged(4351))

    assert [(4000, 4352)] == list(assembly.missing())
    assert assembly.data() is None


@pytest.mark.parametrize("length_bytes", [0, 999, 4351])
def test_bytes_that_end_inside_a_window_give_only_those_before(length_bytes: int) -> None:
    """
    A file that was cut still has its whole windows.
    """
    assembly = Assembly(CHUNK)

    assert length_bytes // WINDOW_BYTES * WINDOW_BYTES == assembly.add_windows(
        0, DATA[:length_bytes]
    )


def test_more_than_the_chunk_has_is_not_taken() -> None:
    """Bytes behind the chunk in a file belong to another chunk."""
    assembly = Assembly(CHUNK)

    assembly.add_windows(0, DATA + b"and more")

    assert [(4000, 4352)] == list(assembly.missing())
