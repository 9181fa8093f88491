"""Paths and addresses of `spark_verify.file_systems`, refused in our words."""

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
    from spark_verify.errors import PlaceRefused
    from spark_verify.file_systems import Place

    try:
        place = Place.of(address)
        assert place.files is not None
    except PlaceRefused as error:
        raise Refused(Code.INVALID_CONFIG, str(error), hint=error.hint) from error
    return place
