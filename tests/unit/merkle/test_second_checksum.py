"""The second witness agrees with the first, and is another program."""

import hashlib
import json

import pytest

from merkle.checksum import window_checksums
from merkle.replica import ChecksumType
from merkle.second_checksum import CONSTRUCTORS, built_in, witness_checksums, witness_is_native
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
