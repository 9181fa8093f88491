"""The second witness agrees with the first, and is another program."""

import hashlib
import json
import zlib

import pytest

from merkle.checksum import Buffer, big_endian_32, slices_of, window_checksums
from merkle.replica import ChecksumType
from merkle.second_checksum import (
    CHECKED_BYTES,
    CHECKED_WINDOWS_BYTES,
    CONSTRUCTORS,
    CRC_NAMES,
    CRCS,
    LIBRARIES,
    Crc,
    built_in,
    witness_checksums,
    witness_crcs,
    witness_is_native,
)
from tests.support.storage.trees import CHUNK_A, CHUNK_B, WINDOW_BYTES


@pytest.mark.parametrize("checksum_type", list(ChecksumType))
@pytest.mark.parametrize("data", [CHUNK_A, CHUNK_B, b"", bytes(range(256)) * 9])
def test_second_checksum_witness_agrees_with_the_first(
    checksum_type: ChecksumType, data: bytes
) -> None:
    """Two implementations give one value."""
    expected = window_checksums(checksum_type, WINDOW_BYTES, data)

    assert expected == witness_checksums(checksum_type, WINDOW_BYTES, data)


@pytest.mark.parametrize("checksum_type", [ChecksumType.SHA256, ChecksumType.MD5])
def test_the_witness_is_not_openssl(checksum_type: ChecksumType) -> None:
    """
    A fault of OpenSSL cannot testify twice: the witness is the code that Python carries.
    """
    first = type(hashlib.new(checksum_type.name, usedforsecurity=False))

    second = type(CONSTRUCTORS[checksum_type](b""))

    assert "_hashlib" == first.__module__
    assert "_hashlib" != second.__module__


def test_the_first_module_that_there_is_gives_it() -> None:
    """
    Python renamed its own; where it was built without, hashlib's is all there is.
    """
    assert json.dumps is built_in("dumps", ("no_such_module", "json", "pickle"))
    assert hashlib.sha256 is built_in("sha256", ("no_such_module",))
    assert hashlib.sha256 is built_in("sha256", ())


@pytest.fixture
def crcmod_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the data of which crcmod computed a CRC."""
    lengths: list[int] = []

    def noted(crc: Crc) -> Crc:
        def called(data: Buffer) -> int:
            lengths.append(len(data))
            return crc(data)

        return called

    for checksum_type in CRC_NAMES:
        monkeypatch.setitem(CRCS, checksum_type, noted(CRCS[checksum_type]))
    return lengths


@pytest.mark.parametrize("checksum_type", list(CRC_NAMES))
def test_crcs_are_computed_by_a_library_that_agreed_with_crcmod(
    checksum_type: ChecksumType, crcmod_bytes: list[int]
) -> None:
    """crcmod takes ten times as long."""
    crcs = witness_crcs.__wrapped__(checksum_type)
    assert len(CHECKED_WINDOWS_BYTES) * CHECKED_BYTES == sum(crcmod_bytes)
    crcmod_bytes.clear()

    found = crcs(CHUNK_A, WINDOW_BYTES)

    assert window_checksums(checksum_type, WINDOW_BYTES, CHUNK_A) == big_endian_32(found)
    assert not crcmod_bytes


@pytest.mark.parametrize("checksum_type", list(CRC_NAMES))
@pytest.mark.parametrize("wrong_window_bytes", [None, *CHECKED_WINDOWS_BYTES])
def test_crcmod_replaces_a_library_that_is_missing_or_wrong(
    checksum_type: ChecksumType,
    wrong_window_bytes: int | None,
    crcmod_bytes: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A library may be wrong only at some lengths."""

    def wrong(data: Buffer, window_bytes: int) -> list[int]:
        flip = window_bytes == wrong_window_bytes
        return [zlib.crc32(window) ^ flip for window in slices_of(data, window_bytes)]

    monkeypatch.setitem(CRCS, checksum_type, CRCS[ChecksumType.CRC32])
    library = None if wrong_window_bytes is None else wrong
    monkeypatch.setitem(LIBRARIES, checksum_type, lambda: library)
    crcs = witness_crcs.__wrapped__(checksum_type)
    crcmod_bytes.clear()

    assert [zlib.crc32(b"a")] == crcs(b"a", 1)
    assert [1] == crcmod_bytes


def test_crcmod_runs_as_c_here() -> None:
    """
    The environment that the tests run in has the extension, or every scan would crawl.
    """
    assert witness_is_native()


def test_a_slice_of_a_buffer_is_witnessed() -> None:
    """
    The scanner hands over its read buffer, not a copy.
    """
    view = memoryview(bytearray(CHUNK_B + CHUNK_B))[: len(CHUNK_B)]

    assert bytes.fromhex("04f256de") == witness_checksums(ChecksumType.CRC32C, WINDOW_BYTES, view)


@pytest.mark.parametrize("checksum_type", list(CRC_NAMES))
def test_library_that_disagrees_with_crcmod_on_a_sample_is_not_used(
    checksum_type: ChecksumType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that was right at the start may become wrong, for example by a flip in memory."""
    expected = window_checksums(checksum_type, 16_384, CHUNK_A)

    def wrong(data: Buffer, window_bytes: int) -> list[int]:
        return [1] * len(slices_of(data, window_bytes))

    monkeypatch.setattr("merkle.second_checksum.witness_crcs", lambda _: wrong)

    assert expected == witness_checksums(checksum_type, 16_384, CHUNK_A)
