"""Ozone's rows of a block: what they hold, what is refused and how."""

from typing import Any

import pytest

from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ChecksumType, ContainerId
from ozone.disk.blockrow import decode_stored, folds_of
from ozone.disk.messages import BLOCK_DATA
from ozone.disk.unsupported_format import UnsupportedFormat
from tests.support.ozone.ozone_volumes import NONE, chunk_message, crc32c_of

HERE, BLOCK = ContainerId(1), BlockId(9)


def row(*chunks: dict[str, Any], block_id: int = BLOCK, incremental: bool = False) -> bytes:
    """Return a row of these chunks."""
    message = BLOCK_DATA(
        block_id={"container_id": HERE, "local_id": block_id, "bcsid": 5}, chunks=chunks
    )
    if incremental:
        message.metadata.add(key="incremental", value="")
    data: bytes = message.SerializeToString()
    return data


A, B = chunk_message(b"a" * 20_000, 0), chunk_message(b"b" * 100, 20_000)


def test_a_row_becomes_a_block() -> None:
    """
    Offsets, lengths, checksums and their type are those of the row.
    """
    stored = decode_stored(HERE, BLOCK, row(A, B), None)

    block = stored.block
    assert (BLOCK, 5, 20_100, 0) == (
        block.block_id,
        block.bcsid,
        block.length_bytes,
        stored.tail_count,
    )
    assert [ChecksumType.CRC32] * 2 == [chunk.checksum_type for chunk in block.chunks]
    assert b"".join(A["checksum_data"]["checksums"]) == block.chunks[0].window_checksums


def test_the_last_chunk_of_a_file_that_was_never_closed_is_read() -> None:
    """
    Behind the chunks of an incremental row comes the chunk of the other table.
    """
    stored = decode_stored(HERE, BLOCK, row(A, incremental=True), row(B))

    assert (20_100, 1) == (stored.block.length_bytes, stored.tail_count)


def test_a_block_may_have_its_last_chunk_only() -> None:
    """
    A file that was synced once and never closed has no row in the first table.
    """
    stored = decode_stored(HERE, BLOCK, None, row(A))

    assert (20_000, 1) == (stored.block.length_bytes, stored.tail_count)


def test_a_last_chunk_that_was_overtaken_is_passed_over() -> None:
    """If the row is not incremental, the other table is not read, as in Ozone's clients."""
    stored = decode_stored(HERE, BLOCK, row(A, B), row(B))

    assert (20_100, 0) == (stored.block.length_bytes, stored.tail_count)


def test_ozones_folds_of_a_block() -> None:
    """
    From the rows everything counts; Ozone's scan leaves out the last chunk and what has no sums.
    """
    unsummed = chunk_message(b"n" * 10, 20_000, NONE)

    folds = folds_of(decode_stored(HERE, BLOCK, row(A, unsummed), None))

    leaf = crc32c_of(b"".join(A["checksum_data"]["checksums"]))
    number = BLOCK.to_bytes(8)
    assert crc32c_of(number + leaf.to_bytes(8) + bytes(8)) == folds.written == folds.closed
    assert crc32c_of(number + leaf.to_bytes(8)) == folds.scanned
    assert not folds.is_stable
    assert folds_of(decode_stored(HERE, BLOCK, row(), None)).scanned is None
    assert folds_of(decode_stored(HERE, BLOCK, row(A, B), None)).is_stable


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff\xff\xff", "no BlockData"),
        (row(A, block_id=8), "it names container 1, block 8"),
        (row({**A, "checksum_data": {}}), "no checksum type"),
        (row({"name": "x", "checksum_data": {"type": 2}}), "without offset or length"),
        (row({**A, "length": 40_000}), "8 bytes of CRC32 checksums, expected 12"),
        (row(A, {**B, "offset": 19_999}), "begins before 20000"),
        (b"", "it names container 0, block 0"),
    ],
)
def test_a_row_that_cannot_have_been_written_is_damaged(data: bytes, why: str) -> None:
    """A row that contradicts itself is damaged, and the error says how."""
    with pytest.raises(DamagedData, match=why):
        decode_stored(HERE, BLOCK, data, None)


@pytest.mark.parametrize(
    ("data", "tail", "why"),
    [
        (row({**A, "checksum_data": {"type": 6}}), None, "checksum type 6"),
        (row({**A, "length": 1 << 40}), None, "a length of 1099511627776 bytes"),
        (row({**A, "length": 0}), None, "a length of 0 bytes"),
        (row(A, incremental=True), row({**B, "offset": 30_000}), "its last chunk is at 30000"),
        (row(A, incremental=True), row(A, B), "its last chunk is at 0, 20000"),
        (row(*[{}] * 70_000), None, "70000 chunks"),
        (row(A) + b"\x1a\0" * 70_000, None, "70000 notes"),
    ],
)
def test_row_of_another_ozone_version_is_unknown_not_damaged(
    data: bytes, tail: bytes | None, why: str
) -> None:
    """A sound row with unknown content is no damage."""
    with pytest.raises(UnsupportedFormat, match=why):
        decode_stored(HERE, BLOCK, data, tail)
