"""Addresses that say more than is taken of them are refused."""

import pytest

from suture.errors import RefusedError
from suture.wire.mapping.file_systems import FsPath


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("file://data/s", "file://data/s is no address of a local disk"),
        ("file://results", "is no address of a local disk"),
        ("file://", "is no address of a local disk"),
        ("file:///data/what?", "is no address of a local disk"),
        ("file:///data/s?x=1", "is no address of a local disk"),
        ("file:///data/s#1", "no part behind #"),
        ("s3://bucket/res#1", "no part behind #"),
        ("s3://bucket/res#", "no part behind #"),
        ("hdfs://host:1/res#1", "no part behind #"),
    ],
)
def test_an_address_of_which_a_part_would_be_dropped_is_refused(address: str, words: str) -> None:
    """The shortened address would be another directory."""
    with pytest.raises(RefusedError, match=words) as raised:
        FsPath.of(address)

    assert raised.value.hint


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("file:///data/s", "/data/s"),
        ("file://localhost/data/s", "/data/s"),
        ("FILE:///data/s/", "/data/s"),
        ("file:///data/a%23b%3Fc%20d", "/data/a#b?c d"),
        ("/data/a#b?c", "/data/a#b?c"),
        ("s3://bucket/a?scheme=http", "bucket/a"),
    ],
)
def test_other_addresses_are_taken(address: str, path: str) -> None:
    """
    Plain paths may have any letter.
    """
    assert path == FsPath.of(address).path
