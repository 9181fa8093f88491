"""Checks the addresses of file systems, such as s3:// or hdfs://, before they are used."""

from typing import Any
from urllib.parse import urlsplit, urlunsplit

from suture.errors import Code, RefusedError


def check_address(address: str) -> None:
    """Raise RefusedError if the address of a file system is invalid or contains credentials,
    because addresses are printed and logged."""
    parts = urlsplit(address)
    if not parts.scheme or not (parts.netloc or parts.path.strip("/")):
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"invalid address {address!r}: expected an address of a file system",
            hint="for example s3://bucket/snapshots or file:///data/snapshots",
        )
    opened(address)


def below(address: str, name: str) -> str:
    """Return the address of the entry `name` in the directory at `address`."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def opened(address: str) -> Any:
    """Return the `FsPath` of an address or a path. Raise RefusedError(INVALID_CONFIG) if the
    address is invalid, contains credentials, or has an unusable file system."""
    # Imported only where files are read or written, so that other commands start without Arrow.
    from suture.wire.mapping.file_systems import FsPath

    place = FsPath.of(address)
    assert place.files is not None
    return place
