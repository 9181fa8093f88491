"""Window checksums by a second implementation, which shares no code with the first.

A scan reports data as corrupt only if two independent implementations (witnesses) agree (invariant
I3). This one takes twenty times as long as `merkle.checksum`, so it is used only after the first
one has reported a mismatch.

    type            first witness             this one
    CRC32C          crc32c (hardware)         crcmod (tables)
    CRC32           zlib                      crcmod (tables)
    SHA256, MD5     hashlib through OpenSSL   the C code that Python carries itself
"""

import hashlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, cast

from crcmod.predefined import mkCrcFun

from merkle.checksum import Buffer, big_endian_32, slices_of
from merkle.replica import ChecksumType

CRC_NAMES: Final = {ChecksumType.CRC32: "crc-32", ChecksumType.CRC32C: "crc-32c"}


def built_in(name: str, modules: tuple[str, ...]) -> Callable[..., Any]:
    """Return Python's own implementation of a hashlib algorithm.

    If Python was built without it (some FIPS builds), return OpenSSL's implementation. Such a host
    cannot distinguish a faulty OpenSSL from a faulty disk for this checksum type.
    """
    for module in modules:
        try:
            return cast(Callable[..., Any], getattr(import_module(module), name))
        except ImportError:
            continue
    return cast(Callable[..., Any], getattr(hashlib, name))


CRCS: Final[dict[ChecksumType, Callable[[Any], int]]] = {
    checksum_type: cast(Callable[[str], Callable[[Any], int]], mkCrcFun)(name)
    for checksum_type, name in CRC_NAMES.items()
}
CONSTRUCTORS: Final[dict[ChecksumType, Callable[..., Any]]] = {
    ChecksumType.SHA256: built_in("sha256", ("_sha2", "_sha256")),  # 3.12 renamed the module
    ChecksumType.MD5: built_in("md5", ("_md5",)),
}


def witness_checksums(checksum_type: ChecksumType, bytes_per_checksum: int, data: Buffer) -> bytes:
    """Return the same as `merkle.checksum.window_checksums`, by the second implementation."""
    if checksum_type is ChecksumType.NONE:
        return b""
    windows = slices_of(data, bytes_per_checksum)
    if checksum_type in CRCS:
        crc = CRCS[checksum_type]
        return big_endian_32([crc(window) for window in windows])
    constructor = CONSTRUCTORS[checksum_type]
    return b"".join([constructor(window, usedforsecurity=False).digest() for window in windows])


def witness_is_native() -> bool:
    """Return True if crcmod runs as C.

    Without its C extension, crcmod falls back to Python code, which is 40 times slower, without a
    warning. Programs that use this module report the fallback at their start.
    """
    # The package rebinds the name of this submodule to itself, so a plain import does not work.
    return bool(import_module("crcmod.crcmod")._usingExtension)
