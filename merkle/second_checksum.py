"""Computes window checksums with a second implementation, which shares no code with the first.

A scan reports data as corrupt only if two independent implementations (witnesses) compute the same
wrong checksum (invariant I3). A scan uses this implementation only after the first one has reported
a mismatch.

    type            first witness             this one
    CRC32C          crc32c, awscrt            ISA-L
    CRC32           zlib, ISA-L               awscrt
    SHA256, MD5     hashlib through OpenSSL   the C code that Python carries itself

In each process, a library for CRCs is first compared with crcmod on random data, and then on a
sample of all data that it checks. crcmod uses only tables and no special instructions, and takes at
least ten times as long. If a library is missing, or its results differ from those of crcmod, crcmod
is used instead.
"""

import ctypes
import hashlib
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeAlias, cast

import numpy as np
from crcmod.predefined import mkCrcFun

from merkle.checksum import Buffer, big_endian_32, slices_of
from merkle.isal_library import isal_library
from merkle.replica import ChecksumType

Crc: TypeAlias = Callable[[Any], int]
WindowCrcs: TypeAlias = Callable[[Buffer, int], list[int]]
"""A function that returns the CRCs of all windows of some data. Its second argument is the size of
a window in bytes."""


CRC_NAMES: Final = {ChecksumType.CRC32: "crc-32", ChecksumType.CRC32C: "crc-32c"}
ALL_ONES: Final = 0xFFFF_FFFF
SAMPLE_BYTES_MAX: Final = 2_048  # takes crcmod 5 µs, where the scan of a chunk of 1 MiB takes 100
CHECKED_BYTES: Final = 100_003
CHECKED_WINDOWS_BYTES: Final = (64, 255, 1_024, 4_095, 16_384, CHECKED_BYTES)
"""Window sizes for the comparison of a library with crcmod. They include the sizes at which
libraries switch between tables and special instructions. The last window of the data is shorter."""


def built_in(name: str, modules: tuple[str, ...]) -> Callable[..., Any]:
    """Return Python's own implementation of a hashlib algorithm.

    Some builds of Python (for instance FIPS builds) lack this code. For them, return OpenSSL's
    implementation. On such a host, a faulty OpenSSL cannot be distinguished from a faulty disk for
    this checksum type.
    """
    for module in modules:
        try:
            return cast(Callable[..., Any], getattr(import_module(module), name))
        except ImportError:
            continue
    return cast(Callable[..., Any], getattr(hashlib, name))


CRCS: Final[dict[ChecksumType, Crc]] = {
    checksum_type: cast(Callable[[str], Crc], mkCrcFun)(name)
    for checksum_type, name in CRC_NAMES.items()
}
CONSTRUCTORS: Final[dict[ChecksumType, Callable[..., Any]]] = {
    ChecksumType.SHA256: built_in("sha256", ("_sha2", "_sha256")),  # 3.12 renamed the module
    ChecksumType.MD5: built_in("md5", ("_md5",)),
}


def each_window(crc: Crc) -> WindowCrcs:
    """Return a function that calls `crc` for each window of its data."""
    return lambda data, window_bytes: [crc(window) for window in slices_of(data, window_bytes)]


def isal_crc32cs() -> WindowCrcs | None:
    """Return a function that computes the CRC-32C of each window with ISA-L. Return None if ISA-L
    is not installed."""
    library = isal_library()
    if library is None:
        return None
    function = library.crc32_iscsi
    function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
    function.restype = ctypes.c_uint32

    def crc32cs(data: Buffer, window_bytes: int) -> list[int]:
        octets = np.frombuffer(data, dtype=np.uint8)
        start, size_bytes = octets.__array_interface__["data"][0], len(octets)
        return [
            function(start + at, min(window_bytes, size_bytes - at), ALL_ONES) ^ ALL_ONES
            for at in range(0, size_bytes, window_bytes)
        ]

    return crc32cs


def awscrt_crc32s() -> WindowCrcs:
    """Return a function that computes the CRC-32 of each window with awscrt."""
    return each_window(cast(Crc, import_module("awscrt.checksums").crc32))


LIBRARIES: Final[dict[ChecksumType, Callable[[], WindowCrcs | None]]] = {
    ChecksumType.CRC32: awscrt_crc32s,
    ChecksumType.CRC32C: isal_crc32cs,
}


@cache
def witness_crcs(checksum_type: ChecksumType) -> WindowCrcs:
    """Return the second implementation's function that computes the CRCs of windows.

    It is the function of a library if its results on random data equal those of crcmod. Otherwise
    it is crcmod's function.
    """
    reference, crcs = each_window(CRCS[checksum_type]), LIBRARIES[checksum_type]()
    data = hashlib.shake_128(b"witness").digest(CHECKED_BYTES)  # as good as random
    if crcs is None or any(crcs(data, n) != reference(data, n) for n in CHECKED_WINDOWS_BYTES):
        return reference
    return crcs


def witness_checksums(checksum_type: ChecksumType, bytes_per_checksum: int, data: Buffer) -> bytes:
    """Return the concatenated checksums of all windows of `data`, computed by the second
    implementation.

    On a host without faults, the result equals that of `merkle.checksum.window_checksums`.
    """
    if checksum_type is ChecksumType.NONE:
        return b""
    if checksum_type in CRCS:
        crcs = witness_crcs(checksum_type)
        if not is_sample_right(checksum_type, crcs, data):
            crcs = each_window(CRCS[checksum_type])
        return big_endian_32(crcs(data, bytes_per_checksum))
    constructor = CONSTRUCTORS[checksum_type]
    windows = slices_of(data, bytes_per_checksum)
    return b"".join([constructor(window, usedforsecurity=False).digest() for window in windows])


def is_sample_right(checksum_type: ChecksumType, crcs: WindowCrcs, data: Buffer) -> bool:
    """Return True if crcmod and `crcs` compute the same CRC of a part of `data`. The place of the
    part depends on the data."""
    size_bytes = min(SAMPLE_BYTES_MAX, len(data))
    if not size_bytes:
        return True
    start = int.from_bytes(data[-8:]) % (len(data) - size_bytes + 1)
    part = memoryview(data)[start : start + size_bytes]
    return crcs(part, size_bytes) == [CRCS[checksum_type](part)]


def witness_is_native() -> bool:
    """Return True if crcmod uses its C extension.

    Without the C extension, crcmod uses Python code, which is 40 times slower, and gives no
    warning. Scans that use crcmod instead of a missing library are then slow. Therefore, programs
    that use this module log a warning at their start.
    """
    # The package rebinds the name of this submodule to itself, so a plain import does not work.
    return bool(import_module("crcmod.crcmod")._usingExtension)
