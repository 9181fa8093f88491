"""Addresses that say more than is taken of them are refused."""

import pytest

from suture.errors import RefusedError
from suture.wire.mapping.file_systems import FsPath


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("file://data/s", "invalid address 'file://data/s': expected a local path"),
        ("file://results", "expected a local path"),
        ("file://", "expected a local path"),
        ("file:///data/what?", "expected a local path"),
        ("file:///data/s?x=1", "expected a local path"),
        ("file:///data/s#1", "a fragment after # is not supported"),
        ("s3://bucket/res#1", "a fragment after # is not supported"),
        ("s3://bucket/res#", "a fragment after # is not supported"),
        ("hdfs://host:1/res#1", "a fragment after # is not supported"),
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
