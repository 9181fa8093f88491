"""Measures erasure coding on one core: decoding with all checks against bare decoding.

`decode and verify` is a reconstruction's work on a stripe: check the checksums of the cells it
read, compute the lost ones, recompute one that was read and compare, and checksum the result. It is
measured against pyeclib's decoding of the same cells, which checks nothing and returns the data in
one piece. Without a bound it is also measured against pyeclib's reconstruction of the lost shards
alone, and against the ISA-L kernel that all of them call.
"""

import random
from collections.abc import Callable

from pyeclib.ec_iface import ECDriver

from bench.measure import Measure, at_least, interleaved_medians
from merkle.checksum import window_checksums, windows_verify
from merkle.replica import WINDOW_BYTES_DEFAULT, ChecksumType
from suture.ec import cell_codec
from suture.ec.scheme import RS_3_2, RS_6_3, RS_10_4, Scheme

STRIPES = 8  # per round: together larger than the caches
SEED = 3


def sums_of(cell: bytes | memoryview) -> bytes:
    """Return a cell's window checksums."""
    return window_checksums(ChecksumType.CRC32C, WINDOW_BYTES_DEFAULT, cell)


def stripes_of(scheme: Scheme) -> list[dict[int, bytes]]:
    """Return stripes of pseudo-random data with parity, each as cells by index."""
    source = random.Random(SEED)  # noqa: S311 - bytes, not secrets
    stripes = []
    for _ in range(STRIPES):
        data = [source.randbytes(scheme.cell_bytes) for _ in range(scheme.data_count)]
        cells = data + [bytes(cell) for cell in cell_codec.encode(scheme, data)]
        stripes.append(dict(enumerate(cells, start=1)))
    return stripes


def fragments_of(
    driver: ECDriver, stripes: list[dict[int, bytes]], lost: tuple[int, ...], data_count: int
) -> list[list[bytes]]:
    """Return the fragments of each stripe as pyeclib encodes them, without the lost fragments."""
    encoded = [
        driver.encode(b"".join(cells[index] for index in range(1, data_count + 1)))
        for cells in stripes
    ]
    return [[item for index, item in enumerate(made, 1) if index not in lost] for made in encoded]


def checked_decode(
    scheme: Scheme, stripes: list[dict[int, bytes]], lost: tuple[int, ...]
) -> Callable[[], None]:
    """Return a function that decodes the stripes with all checks, as a reconstruction does."""
    survivors = [index for index in scheme.indexes if index not in lost][: scheme.data_count]
    sums = [{index: sums_of(cells[index]) for index in survivors} for cells in stripes]
    crc32c = ChecksumType.CRC32C

    def decode() -> None:
        for cells, expected in zip(stripes, sums, strict=True):
            sources = {index: cells[index] for index in survivors}
            for index, cell in sources.items():
                assert windows_verify(crc32c, WINDOW_BYTES_DEFAULT, expected[index], cell)
            rebuilt = cell_codec.rebuild_checked(scheme, sources, lost, scheme.cell_bytes)
            for octets in rebuilt.values():
                sums_of(octets.data)

    return decode


def kernel_decode(
    scheme: Scheme, stripes: list[dict[int, bytes]], lost: tuple[int, ...]
) -> Callable[[], object]:
    """Return a function that decodes the stripes with ISA-L, without any check."""
    rests = [{i: cell for i, cell in cells.items() if i not in lost} for cells in stripes]
    return lambda: [cell_codec.rebuild(scheme, rest, lost, scheme.cell_bytes) for rest in rests]


def bench(scheme: Scheme, lost: tuple[int, ...]) -> list[Measure]:
    """Measure one scheme with some shards lost."""
    stripes = stripes_of(scheme)
    driver = ECDriver(k=scheme.data_count, m=scheme.parity_count, ec_type="isa_l_rs_cauchy")
    fragments = fragments_of(driver, stripes, lost, scheme.data_count)
    wanted = [index - 1 for index in lost]
    ours = checked_decode(scheme, stripes, lost)
    name = f"{scheme}, {len(lost)} lost"

    ours_s, library_s = interleaved_medians(ours, lambda: [driver.decode(f) for f in fragments])
    again_s, kernel_s = interleaved_medians(ours, kernel_decode(scheme, stripes, lost))
    third_s, shards_s = interleaved_medians(
        ours, lambda: [driver.reconstruct(f, wanted) for f in fragments]
    )
    return [
        at_least(
            f"decode and verify, {name}",
            library_s / ours_s,
            "x",
            0.7,
            compared_with="pyeclib decode, no checks",
        ),
        Measure("  the same", shards_s / third_s, "x", "pyeclib reconstruct, no checks"),
        Measure("  the same", kernel_s / again_s, "x", "ISA-L's kernel, no checks"),
        Measure("  the same", STRIPES * scheme.stripe_bytes / ours_s / 1e9, "GB/s"),
    ]


def measures() -> list[Measure]:
    """Measure checked decoding, with one lost shard and with the maximum number of lost shards."""
    found = []
    for scheme in (RS_3_2, RS_6_3, RS_10_4):
        for lost in ((1,), tuple(range(1, scheme.parity_count + 1))):
            found += bench(scheme, lost)
    return found
