"""By which of several ways checksums are computed: all give the same, some much faster.

The figures are those at which one way becomes faster than the other (ADR 0011, 0012, 0019).
"""

import ctypes
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from merkle import checksum, checksum_columns
from merkle.checksum import Algorithm, long_crc32, short_crc32, windows_verify
from merkle.checksum_columns import fold_slices
from merkle.replica import ChecksumType

WINDOW_BYTES = 4


@pytest.fixture
def found_anew() -> Iterator[None]:
    """The library is looked for in the test, and again after it."""
    long_crc32.cache_clear()
    yield
    long_crc32.cache_clear()


class Isal:
    """A library with the one function that is asked for, which notes how long its data is."""

    def __init__(self) -> None:
        self.lengths_bytes: list[int] = []

        def crc32(value: int, place: Any, length_bytes: int) -> int:
            self.lengths_bytes.append(length_bytes)
            return zlib.crc32(ctypes.string_at(place, length_bytes), value)

        self.crc32_gzip_refl: Any = crc32


@pytest.mark.usefixtures("found_anew")
def test_long_data_goes_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is used from 4 KiB on for any buffer, unless it is read-only and only a view."""
    isal = Isal()
    monkeypatch.setattr(checksum, "isal_library", lambda: isal)
    short, long = bytes(range(256)) * 16, bytes(range(1, 256)) * 17
    given = [short[:4095], bytearray(short[:4095]), short, bytearray(short), long, memoryview(long)]

    found = [long_crc32()(data, 7) for data in given]

    assert [zlib.crc32(data, 7) for data in given] == found
    assert [4096, 4096, 255 * 17] == isal.lengths_bytes
    assert [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64] == isal.crc32_gzip_refl.argtypes


@pytest.mark.usefixtures("found_anew")
def test_without_the_library_it_is_zlibs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stands between."""
    monkeypatch.setattr(checksum, "isal_library", lambda: None)

    assert zlib.crc32 is long_crc32()


class Noted:
    """A function that notes how long what it is given is, before it does what it does."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.lengths_bytes: list[int] = []

    def __call__(self, data: Any, *more: Any) -> Any:
        """Note it, and do it."""
        self.lengths_bytes.append(len(data))
        return self._function(data, *more)

    def taken(self) -> list[int]:
        """Return the notes, and forget them."""
        noted, self.lengths_bytes = self.lengths_bytes, []
        return noted


def test_a_long_window_goes_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long window is computed by the library, like other long data."""
    long = Noted(zlib.crc32)
    monkeypatch.setattr(checksum, "long_crc32", lambda: long)

    found = [short_crc32(bytes(length_bytes)) for length_bytes in (4095, 4096)]

    assert [zlib.crc32(bytes(4095)), zlib.crc32(bytes(4096))] == found
    assert [4096] == long.taken()


@pytest.mark.parametrize("checksum_type", [ChecksumType.CRC32, ChecksumType.CRC32C])
def test_windows_are_verified_in_the_fastest_way_for_their_number(
    monkeypatch: pytest.MonkeyPatch, checksum_type: ChecksumType
) -> None:
    """One window is verified by one call, eight or more by one call, and the numbers between
    window by window.
    """
    one = Noted(checksum.SHORT_CRCS[checksum_type])
    whole = Noted(checksum.long_crcs()[checksum_type])
    each = Noted(long_crc32())
    monkeypatch.setitem(checksum.SHORT_CRCS, checksum_type, one)
    monkeypatch.setattr(checksum, "long_crcs", lambda: {checksum_type: whole})
    monkeypatch.setattr(checksum, "long_crc32", lambda: each)
    ways = []

    for length_bytes in (0, 1, 4, 5, 28, 29, 32):
        data = bytes(range(length_bytes))
        expected = checksum.window_checksums(checksum_type, WINDOW_BYTES, data)
        assert windows_verify(checksum_type, WINDOW_BYTES, expected, data)
        ways.append((one.taken(), whole.taken(), len(each.taken())))

    counts = [2, 7] if checksum_type is ChecksumType.CRC32 else [0, 0]  # the other has its own way
    assert [([], [], 0), ([1], [], 0), ([4], [], 0)] == ways[:3]
    assert [([], [], count) for count in counts] == ways[3:5]
    assert [([], [29], 0), ([], [32], 0)] == ways[5:]


def test_too_few_checksums_are_combined_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 bytes in windows of four have eight checksums."""
    data = bytes(32)
    expected = checksum.window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, data)
    whole = Noted(checksum.long_crcs()[ChecksumType.CRC32C])
    monkeypatch.setattr(checksum, "long_crcs", lambda: {ChecksumType.CRC32C: whole})

    verified = [
        windows_verify(ChecksumType.CRC32C, WINDOW_BYTES, given, data)
        for given in (expected[:-4], expected + bytes(4), expected)
    ]

    assert [False, False, True] == verified
    assert [32] == whole.taken()


@pytest.mark.parametrize(
    ("count", "lengths_bytes", "way"),
    [
        (63, (32,), "gathered"),
        (64, (32,), "in tables"),
        (64, (1,), "in tables"),
        (64, (33,), "gathered"),
        (64, (64,), "gathered"),
        (64, (65,), "one by one"),
        (64, (0,), "one by one"),
        (64, (4, 5), "one by one"),
        (64, (5, 4), "one by one"),
    ],
)
@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_slices_are_folded_the_fastest_way(
    monkeypatch: pytest.MonkeyPatch,
    algorithm: Algorithm,
    count: int,
    lengths_bytes: tuple[int, ...],
    way: str,
) -> None:
    """
    Those of one length are cut out in one sweep, and the CRCs of many short ones looked up.
    """
    ways = []
    fold_each, short_crc32cs = checksum_columns.fold_each, checksum_columns.short_crc32cs

    def folded(
        algorithm: Algorithm, inputs: Iterable[bytes | memoryview], count: int
    ) -> npt.NDArray[np.uint64]:
        given = list(inputs)
        ways.append("gathered" if isinstance(given[0], bytes) else "one by one")
        return fold_each(algorithm, given, count)

    def looked_up(octets: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
        ways.append("in tables")
        return short_crc32cs(octets)

    monkeypatch.setattr(checksum_columns, "fold_each", folded)
    monkeypatch.setattr(checksum_columns, "short_crc32cs", looked_up)
    lengths = np.array([*lengths_bytes, *lengths_bytes[-1:] * (count - len(lengths_bytes))])
    starts = np.arange(count)

    fold_slices(algorithm, np.arange(200, dtype=np.uint8), starts, lengths)

    is_looked_up = algorithm is Algorithm.CRC32C or way != "in tables"
    assert [way if is_looked_up else "gathered"] == ways
