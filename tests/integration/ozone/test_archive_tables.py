"""Archives of little that unpack to much: RocksDB compresses rows, and trees are dense."""

import tarfile
from pathlib import Path

import grpc
import pytest
from rocksdict import BlockBasedOptions, ChecksumType, DBCompressionType, Options, SstFileWriter

from ozone.disk.database import BLOCKS, DELETES, LAST_CHUNKS
from suture.wire.mapping.varint import varint
from tests.integration.ozone.test_ozone_archives import WHOLE, archive_of, check_nothing, files_of
from tests.support.ozone.ozone_agent import served
from tests.support.ozone.ozone_volumes import key

MiB = 1024**2
STATED = b"value.size"  # RocksDB does not write again how the name before began


def table(path: Path, row_count: int, row_bytes: int) -> bytes:
    """Return a table of rows of zeros, packed to a twentieth; without checksums, so
    that a byte of it can be changed."""
    blocks = BlockBasedOptions()
    blocks.set_checksum_type(ChecksumType.no_checksum())
    options = Options(raw_mode=True)
    options.set_compression_type(DBCompressionType.snappy())
    options.set_block_based_table_factory(blocks)
    writer = SstFileWriter(options)
    writer.open(str(path))
    for number in range(100, 100 + row_count):
        writer[key(WHOLE, number)] = bytes(row_bytes)
    writer.finish()
    return path.read_bytes()


def modest(data: bytes, value_bytes: int) -> bytes:
    """Return a table that says of its rows to be of no bytes, and has them."""
    stated = varint(value_bytes)
    place = data.index(stated, data.rindex(STATED))
    return data[:place] + b"\x80" * (len(stated) - 1) + b"\0" + data[place + len(stated) :]


@pytest.mark.parametrize(
    ("family", "row_count", "row_bytes", "is_modest", "said"),
    [
        (DELETES, 5, 3 * MiB, False, "delete_txns.data unpacks to 15728"),
        (DELETES, 5, 3 * MiB, True, "delete_txns.data unpacks to 12582"),  # once so much was read
        (LAST_CHUNKS, 4, 7 * MiB, False, "last_chunk_info.data unpacks to 29360"),
        (LAST_CHUNKS, 4, 7 * MiB, True, "last_chunk_info.data unpacks to 22020"),
        (BLOCKS, 1, 9 * MiB, False, "block_data.data has a row of 9437184 bytes"),
    ],
)
def test_little_that_becomes_much_is_refused(
    tmp_path: Path, family: str, row_count: int, row_bytes: int, is_modest: bool, said: str
) -> None:
    """Six small calls would take all memory of an agent; also from one whose tables lie."""
    data = table(tmp_path / "table", row_count, row_bytes)
    if is_modest:
        data = modest(data, row_count * row_bytes)
    files = {**files_of("whole"), f"db/{family}.data": data}
    order = ["container.yaml", "5.tree", *sorted(name for name in files if name.startswith("db/"))]
    archive = archive_of({name: files[name] for name in order})
    volume = tmp_path / "volume"
    volume.mkdir()

    with served(volume) as (made, client):
        with pytest.raises(grpc.RpcError) as caught:
            client.upload(WHOLE, archive)

        assert len(archive) < 2 * MiB
        assert said in caught.value.details()
        check_nothing(made)


def test_a_tree_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """The size in the header decides, because a few bytes become a hundred in memory."""
    files = files_of("whole")
    tree = tarfile.TarInfo("5.tree")
    tree.size = 64 * MiB + 1
    archive = archive_of({"container.yaml": files["container.yaml"]}).rstrip(b"\0")
    archive += bytes(-len(archive) % tarfile.BLOCKSIZE)

    with served(tmp_path) as (made, client):
        with pytest.raises(grpc.RpcError) as caught:
            client.upload(WHOLE, archive + tree.tobuf())

        assert "5.tree has 67108865 bytes, at most 67108864" in caught.value.details()
        check_nothing(made)
