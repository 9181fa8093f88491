"""Sorted tables of RocksDB that somebody else sends: what they unpack to is known before they are
opened, and no byte of them that is wrong takes the process or its memory."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from rocksdict import BlockBasedOptions, ChecksumType, DBCompressionType, Options, SstFileWriter

from merkle.damaged_data import DamagedData
from ozone.transfer.sorted_table import FOOTER, check_blocks
from suture.wire.mapping.varint import varint
from tests.integration.ozone.test_ozone_archives import files_of
from tests.support.ozone.ozone_volumes import key

MiB = 1024**2
BOUND = 16 * MiB
METHODS = ["none", "snappy"]
ROUNDS = 600
SEED = 20_261_127
ABSURD = [2**28, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1]

OPENED = """
import resource, sys
from pathlib import Path
from suture.errors import SutureError
from ozone.disk.database import library
from ozone.transfer.tables import rows_of
library()
with open("/proc/self/statm") as file:
    had = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (had + 1024 ** 3, had + 1024 ** 3))
for folder in map(Path, sys.argv[1:]):
    try:
        with rows_of(folder, 5) as rows:
            count = sum(len(batch.rows) for batch in rows.batches())
        print(folder.name, "rows", count)
    except SutureError as error:
        print(folder.name, "refused", error)
for line in open("/proc/self/status"):
    if line.startswith("VmHWM:"):  # of this program: an rusage knows that of the one it came from
        print("peak", line.split()[1])
"""


def table(
    path: Path, method: str, *, rows: int = 300, row_bytes: int = 90, version: int = 5
) -> bytes:
    """Return a table of many blocks, without checksums: any byte of it may be changed."""
    blocks = BlockBasedOptions()
    blocks.set_checksum_type(ChecksumType.no_checksum())
    blocks.set_format_version(version)
    blocks.set_block_size(512)
    blocks.set_bloom_filter(10, False)
    options = Options(raw_mode=True)
    options.set_compression_type(getattr(DBCompressionType, method)())
    options.set_block_based_table_factory(blocks)
    writer = SstFileWriter(options)
    writer.open(str(path))
    for number in range(10_000, 10_000 + rows):
        writer[key(5, number)] = f"{number:06}".encode() * (row_bytes // 6)
    writer.finish()
    return path.read_bytes()


@pytest.mark.parametrize("version", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("method", METHODS)
def test_a_table_that_is_whole_passes(tmp_path: Path, method: str, version: int) -> None:
    """All formats pass, packed as Ozone packs its exports or not at all, because a refused table
    is never copied.
    """
    path = tmp_path / "table"

    data = table(path, method, rows=3_000, version=version)
    check_blocks(path, BOUND)
    with pytest.raises(DamagedData, match="unpacks to"):
        check_blocks(path, 256)  # each block is larger: all of them were looked at

    assert 20_000 < len(data)


def test_tables_that_ozone_wrote_pass(tmp_path: Path) -> None:
    """
    Those of real archives.
    """
    tables = {
        f"{number}-{Path(name).name}": data
        for number, archive in enumerate(("whole", "shard"))
        for name, data in files_of(archive).items()
        if name.startswith("db/") and data
    }

    for name, data in tables.items():
        (tmp_path / name).write_bytes(data)
        check_blocks(tmp_path / name, BOUND)

    assert 4 <= len(tables)


def test_a_block_that_unpacks_to_much_is_not_unpacked(tmp_path: Path) -> None:
    """One block is a row of zeros in a few kilobytes, and another only claims a large size."""
    path = tmp_path / "table"
    table(path, "snappy", rows=1, row_bytes=64 * MiB)
    with pytest.raises(DamagedData, match="unpacks to 6710"):
        check_blocks(path, BOUND)
    data = bytearray(table(path, "snappy"))
    data[:5] = varint(2**32 - 1)
    path.write_bytes(data)

    with pytest.raises(DamagedData, match="the block at byte 0 unpacks to 4294967295 bytes"):
        check_blocks(path, BOUND)


def test_a_copy_of_bytes_that_do_not_exist_is_refused(tmp_path: Path) -> None:
    """
    Snappy's copies name a distance to earlier output. One of 0 would be repeated for ever.
    """
    path = tmp_path / "table"
    data = table(path, "snappy")  # its index is packed, too
    said = set()
    for at in range(len(data) * 2 // 3, len(data) - FOOTER.size, 3):
        path.write_bytes(data[:at] + b"\xfe\x00\x00" + data[at + 3 :])
        try:
            check_blocks(path, BOUND)
        except DamagedData as damage:
            said.add(str(damage))

    assert "a copy of what is not there, or of too much" in said


def test_a_method_that_ozone_does_not_use_is_refused(tmp_path: Path) -> None:
    """
    RocksDB lets zlib have more than it states.
    """
    path = tmp_path / "table"
    data = table(path, "none", rows=1)
    said = set()
    for at in range(200):  # one of them says how the first block is packed
        path.write_bytes(data[:at] + b"\x02" + data[at + 1 :])
        try:
            check_blocks(path, BOUND)
        except DamagedData as damage:
            said.add(str(damage))

    assert "the block at byte 0 is packed by method 2" in said


def test_blocks_that_lie_where_none_may_are_refused(tmp_path: Path) -> None:
    """
    Behind the end of the file; and one that is named again and again, which would be unpacked as
    often.
    """
    path = tmp_path / "table"
    data = table(path, "none", version=2)
    start = len(data) - FOOTER.size + 1
    path.write_bytes(data[:start] + varint(7) + varint(2**40) + data[start + 7 :])
    with pytest.raises(DamagedData, match="a block of 1099511627776 bytes at byte 7"):
        check_blocks(path, BOUND)
    (again,) = [
        data.replace(second, b"\x80\x00" + varint(size))
        for size in range(300, 700)
        if data.count(second := varint(size + 5) + varint(size)) == 1
    ]
    path.write_bytes(again)

    with pytest.raises(DamagedData, match="block 1 at byte 0: none may begin there"):
        check_blocks(path, BOUND)


def changed(data: bytes, dice: random.Random) -> bytes:
    """Return a table with something wrong: a bit, a size that makes no sense, a cut, a footer."""
    octets = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 3])):
        at = dice.choice([0, dice.randrange(len(octets)), len(octets) - dice.randrange(1, 900)])
        at = max(at, 0)
        absurd = varint(dice.choice([*ABSURD, len(data)]))
        match dice.randrange(5):
            case 0:
                octets[at] ^= 1 << dice.randrange(8)
            case 1:
                octets[at : at + len(absurd)] = absurd
            case 2:
                place = max(0, len(octets) - FOOTER.size + 1 + dice.choice([0, 2, 3, 5]))
                octets[place : place + len(absurd)] = absurd
            case 3:
                octets[at : at + 8] = dice.randbytes(8)
            case _:
                if len(octets) > 200:
                    del octets[at : at + dice.randrange(1, 40)]
    return bytes(octets)


def test_no_bytes_of_a_table_take_the_process_or_its_memory(tmp_path: Path) -> None:
    """
    Real tables with bytes changed, read as an import reads them by a process that may have a
    gibibyte: each is read or refused by name. What RocksDB cannot allocate ends a process.
    """
    dice = random.Random(SEED)
    originals = [table(tmp_path / "table", method) for method in METHODS]
    originals.append(files_of("whole")["db/block_data.data"])
    folders = []
    for number in range(ROUNDS):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        (folder / "block_data.data").write_bytes(changed(dice.choice(originals), dice))
        folders.append(str(folder))

    # An arena takes 64 MiB of addresses for each of RocksDB's threads, and no memory: with many at
    # once the limit would be met by them, and a thread that cannot be made ends the process.
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "MALLOC_ARENA_MAX": "2",
    }
    ended = subprocess.run(
        [sys.executable, "-c", OPENED, *folders],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )

    said = [
        line
        for line in ended.stdout.splitlines()
        if line.split(" ")[1:2] in (["rows"], ["refused"])
    ]
    assert (0, "") == (ended.returncode, ended.stderr[-2_000:])
    assert ROUNDS == len(said)
    refused = [line for line in said if " refused " in line]
    assert ROUNDS // 3 < len(refused) < ROUNDS
    [peak_kib] = [
        int(line.split()[1]) for line in ended.stdout.splitlines() if line.startswith("peak ")
    ]
    assert 10 * 1024 < peak_kib < 600 * 1024
