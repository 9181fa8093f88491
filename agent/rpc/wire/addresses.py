"""Addresses of files that are on no disk of this machine, checked before they are used."""

from typing import Any
from urllib.parse import urlsplit, urlunsplit

from agent.errors import Code, Refused


def check_address(address: str) -> None:
    """Refuse what is no address of a file system that can be opened, or holds credentials: it is
    printed and logged."""
    parts = urlsplit(address)
    if not parts.scheme or not (parts.netloc or parts.path.strip("/")):
        raise Refused(
            Code.INVALID_CONFIG,
            f"{address!r} is no address of a file system",
            hint="for instance s3://bucket/snapshots or file:///data/snapshots",
        )
    opened(address)


def below(address: str, name: str) -> str:
    """Return the address of something in a directory."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def opened(address: str) -> Any:
    """Return the `Place` of an address or a path. Raises Refused(INVALID_CONFIG) for what is none,
    holds credentials, or cannot be opened."""
    # Only where files are read or written: other commands begin without Arrow.
    from agent.rpc.wire.file_systems import Place

    place = Place.of(address)
    assert place.files is not None
    return place
