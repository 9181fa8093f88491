"""Paths and addresses of file systems: /data/x, file:///data/x, s3://bucket/x, hdfs://name:8020/x."""

from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from agent.errors import Code, Refused

SAME: Final = {"s3a": "s3", "s3n": "s3"}  # Hadoop's names of it


def check_address(address: str) -> None:
    """Refuse what is no address, or holds credentials: it is printed and logged."""
    parts = urlsplit(address)
    if not parts.scheme or not (parts.netloc or parts.path.strip("/")):
        raise Refused(
            Code.INVALID_CONFIG,
            f"{address!r} is no address of a file system",
            hint="for instance s3://bucket/snapshots or file:///data/snapshots",
        )
    if "@" in parts.netloc:
        raise Refused(
            Code.INVALID_CONFIG,
            f"an address of {parts.scheme}:// holds credentials",
            hint="give them by the environment: addresses are printed and logged",
        )


def below(address: str, name: str) -> str:
    """Return the address of something in a directory."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def opened(address: str) -> tuple[Any, str]:
    """Return the file system of an address or a path, and the path in it. Raises
    Refused(INVALID_CONFIG) for what is none, or cannot be opened."""
    import pyarrow.fs  # only where files are read or written: other commands begin without it

    if "://" not in address:
        return pyarrow.fs.LocalFileSystem(), str(Path(address).absolute())
    check_address(address)
    parts = urlsplit(address)
    plain = urlunsplit(parts._replace(scheme=SAME.get(parts.scheme, parts.scheme)))
    try:
        files, path = pyarrow.fs.FileSystem.from_uri(plain)
    except (OSError, TypeError, pyarrow.ArrowException) as error:
        raise Refused(Code.INVALID_CONFIG, f"{address} cannot be opened: {error}") from error
    return files, path.rstrip("/")
