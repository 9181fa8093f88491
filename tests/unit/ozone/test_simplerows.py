"""Rows parsed in columns: what one by one they are, or left to be parsed one by one."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from merkle.blockrow import encode_block
from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ContainerId
from ozone.disk.blockrow import decode_stored, folds_of
from ozone.disk.messages import BLOCK_DATA
from ozone.disk.simplerows import SimpleRows, read_simple
from ozone.disk.unsupported_format import UnsupportedFormat

HERE = ContainerId(300)
FIRST = 117_883_640_217_600_001
CRC32, CRC32C, MD5 = 2, 3, 5


def message(block_id: int, **changed: Any) -> Any:
    """Return a row as Ozone's clients have it, except for what is changed."""
    random = Random(block_id)
    window_bytes = changed.get("window_bytes", random.choice([100, 4_096, 16_384]))
    length = changed.get("length", random.randrange(1, 9 * window_bytes))
    sums = [random.randbytes(4) for _ in range(-(-length // window_bytes))]
    return BLOCK_DATA(
        block_id={"container_id": HERE, "local_id": block_id, "bcsid": random.randrange(1 << 40)},
        metadata=changed.get("metadata", [{"key": "TYPE", "value": "KEY"}]),
        chunks=[
            {
                "name": f"{block_id}_chunk_1",
                "offset": changed.get("offset", 0),
                "length": length,
                "checksum_data": {
                    "type": changed.get("kind", random.choice([CRC32, CRC32C])),
                    "bytes_per_checksum": window_bytes,
                    "checksums": changed.get("sums", sums),
                },
            }
        ],
        size=length,
    )


def row(block_id: int, **changed: Any) -> bytes:
    """Return the bytes of such a row."""
    data: bytes = message(block_id, **changed).SerializeToString()
    return data


def parsed(rows: dict[int, bytes]) -> SimpleRows:
    """Parse rows by block id."""
    return read_simple(HERE, [BlockId(number) for number in rows], list(rows.values()))


def told(found: SimpleRows) -> Iterator[tuple[int, bytes, int, int]]:
    """Yield what was said of each simple row."""
    yield from zip(
        found.block_ids.tolist(),
        found.rows,
        found.lengths_bytes.tolist(),
        found.checksums.tolist(),
        strict=True,
    )


def one_by_one(block_id: int, data: bytes) -> tuple[int, bytes, int, int]:
    """Return what a row is, parsed by itself. Raises Damaged, Unknown."""
    stored = decode_stored(HERE, BlockId(block_id), data, None)
    folds = folds_of(stored)
    assert folds.is_stable
    return block_id, encode_block(stored.block), stored.block.length_bytes, folds.written


def test_rows_as_ozone_writes_them_are_simple() -> None:
    """The rows have any length and window, a replica index or none, and any notes of the client."""
    rows = {FIRST + number: row(FIRST + number) for number in range(500)}
    notes = [{"key": "TYPE", "value": "KEY"}, {"key": "blockGroupLen", "value": "2109497"}]
    rows[FIRST + 500] = row(FIRST + 500, metadata=notes)
    rows[FIRST + 501] = row(FIRST + 501, metadata=[])
    shard = message(FIRST + 502)
    shard.block_id.replica_index = 5
    rows[FIRST + 502] = shard.SerializeToString()
    sizeless = message(FIRST + 503)
    sizeless.ClearField("size")
    rows[FIRST + 503] = sizeless.SerializeToString()

    found = parsed(rows)

    assert found.is_simple.all()
    assert [one_by_one(*item) for item in rows.items()] == list(told(found))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        row(FIRST, offset=1),
        row(FIRST, kind=MD5),
        row(FIRST, kind=1, sums=[]),
        row(FIRST, sums=[b"12345"]),
        row(FIRST, length=100, window_bytes=100, sums=[b"1234", b"5678"]),
        row(FIRST, length=0, window_bytes=100, sums=[]),
        row(FIRST + 1),
        row(FIRST) + row(FIRST),
        row(FIRST)[:-1],
    ],
)
def test_row_that_is_not_simple_is_left_to_the_full_parser(data: bytes) -> None:
    """The row is recognized wherever it is among simple rows."""
    for rows in ([data, row(FIRST)], [row(FIRST), data]):
        found = read_simple(HERE, [BlockId(FIRST)] * 2, rows)
        assert [rows[0] == row(FIRST), rows[1] == row(FIRST)] == found.is_simple.tolist()


def test_a_changed_row_is_what_it_is_by_itself_or_is_not_simple() -> None:
    """
    Any byte changed, taken out or put in: nothing is called simple that one by one is anything
    else, and most that is left alone stays simple.
    """
    random = Random(9)
    originals = [bytearray(row(FIRST + number)) for number in range(64)]
    changed: list[tuple[int, bytes]] = []
    for _ in range(20_000):
        number = random.randrange(len(originals))
        data, at = originals[number].copy(), random.randrange(len(originals[number]))
        what = random.randrange(3)
        data[at : at + (what != 2)] = b"" if what == 1 else bytes([random.randrange(256)])
        changed.append((FIRST + number, bytes(data)))

    found = read_simple(HERE, [BlockId(number) for number, _ in changed], [d for _, d in changed])

    simple = [item for item, chosen in zip(changed, found.is_simple, strict=True) if chosen]
    assert len(changed) // 20 < len(simple) < len(changed) // 2
    assert [one_by_one(*item) for item in simple] == list(told(found))
    for block_id, data in changed[:200]:
        try:
            one_by_one(block_id, data)
        except (DamagedData, UnsupportedFormat):
            assert (block_id, data) not in simple
