"""Containers that Ozone's datanodes pull from an agent: archives as Ozone makes them.

What Ozone's own importer says of them is tried by hand (`tools/interop`). Here the archive of a
container that came from Ozone is compared with the one that Ozone had made of it.
"""

import io
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import zstandard
from rocksdict import Options, Rdict

from merkle.checksum import Algorithm
from merkle.replica import BlockId, ContainerId
from ozone.disk.messages import BLOCK_DATA
from scanner.finding import DamageFault, ScanFinding, Verdict
from tests.support.ozone.ozone_agent import OzoneAgent, OzoneClient, served
from tests.support.ozone.ozone_volumes import GOLDEN, descriptor_text

ARCHIVES = GOLDEN.parent / "archives"
WHOLE, SHARD, OPEN = ContainerId(5), ContainerId(6), ContainerId(9)
ZSTD = 5


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[tuple[OzoneAgent, OzoneClient]]:
    """An agent with containers 5 and 6 of Ozone's, and an open one."""
    with served(tmp_path, algorithm=Algorithm.CRC32C) as (made, client):
        for container_id, name in ((WHOLE, "whole"), (SHARD, "shard")):
            client.upload(container_id, packed(name), compression=ZSTD)
        made.replica.store.create_container(OPEN)
        made.scans.clear()
        yield made, client


def packed(name: str) -> bytes:
    """Return an archive as Ozone compressed it."""
    return (ARCHIVES / f"{name}.tar.zst").read_bytes()


def unpacked(data: bytes) -> bytes:
    """Return what zstd made smaller."""
    return zstandard.ZstdDecompressor().stream_reader(data).read()


def files_of(archive: bytes) -> dict[str, bytes]:
    """Return the plain files in an archive, in their order."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as found:
        members = [member for member in found if member.isreg()]
        return {one.name: found.extractfile(one).read() for one in members}  # type: ignore[union-attr]


def table(data: bytes, scratch: Path) -> dict[bytes, bytes]:
    """Return the rows in the file of a table, names of chunks made plain: Ozone reads none."""
    if not data:
        return {}
    file = scratch / "table"
    file.write_bytes(data)
    database = Rdict(str(scratch / "database"), Options(raw_mode=True))
    database.ingest_external_file([str(file)])
    found = dict(database.items())
    database.close()
    Rdict.destroy(str(scratch / "database"))
    return {key: plain(value) if b"|#" not in key else value for key, value in found.items()}


def plain(row: bytes) -> bytes:
    """Return a row without the names of chunks, and without an index that says nothing."""
    message = BLOCK_DATA.FromString(row)
    if not message.block_id.replica_index:
        message.block_id.ClearField("replica_index")
    for chunk in message.chunks:
        chunk.name = ""
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def pulled(client: OzoneClient, container_id: int, compression: int = 1) -> bytes:
    """Return an archive, its parts as they have to be."""
    parts = client.download(container_id, compression)
    position = 0
    for part in parts:
        assert (container_id, position, len(part.data)) == (
            part.containerID,
            part.readOffset,
            part.len,
        )
        position += len(part.data)
    assert [False] * (len(parts) - 1) + [True] == [part.eof for part in parts]
    return b"".join(part.data for part in parts)


def test_an_archive_is_as_ozone_makes_it(
    agent: tuple[OzoneAgent, OzoneClient], tmp_path: Path
) -> None:
    """The same files in the same order, the same rows, tree and bytes; block 105, which Ozone was
    ordered to delete, is deleted."""
    _, client = agent
    theirs = files_of(unpacked(packed("whole")))

    ours = files_of(pulled(client, WHOLE))

    gone = "chunks/105.block"
    assert [name for name in theirs if "chunks" not in name] == [
        name for name in ours if "chunks" not in name
    ]
    assert {name: data for name, data in theirs.items() if "chunks" in name and name != gone} == {
        name: data for name, data in ours.items() if "chunks" in name
    }
    wanted = table(theirs["db/block_data.data"], tmp_path)
    del wanted[struct.pack(">Q", WHOLE) + b"|105"]
    assert wanted == table(ours["db/block_data.data"], tmp_path)
    numbers = table(ours["db/metadata.data"], tmp_path)
    assert {
        b"#BCSID": 115 - 1,
        b"#BLOCKCOUNT": 4,
        b"#BYTESUSED": 8300,
        b"#DATACHECKSUM": 0x7C4CC851,
    } == {key[9:]: int.from_bytes(value) for key, value in numbers.items()}
    assert (b"", b"") == (ours["db/delete_txns.data"], ours["db/last_chunk_info.data"])


def test_a_shard_is_sent_with_its_stripes(
    agent: tuple[OzoneAgent, OzoneClient], tmp_path: Path
) -> None:
    """Tree, rows and bytes are those that Ozone had sent."""
    _, client = agent
    theirs = files_of(unpacked(packed("shard")))

    ours = files_of(unpacked(pulled(client, SHARD, ZSTD)))

    assert theirs["6.tree"] == ours["6.tree"]
    assert theirs["chunks/201.block"] == ours["chunks/201.block"]
    name = "db/block_data.data"
    assert table(theirs[name], tmp_path) == table(ours[name], tmp_path)


def test_the_descriptor_says_what_it_is(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """Under the checksum of its text; the place is the receiver's to name."""
    _, client = agent
    fields: dict[str, Any] = {
        "chunksPath": "/suture/chunks",
        "containerDBType": "RocksDB",
        "containerID": SHARD,
        "containerType": "KeyValueContainer",
        "layOutVersion": 2,
        "maxSize": 5 * 1024**3,
        "metadata": "{}",
        "metadataPath": "/suture/metadata",
        "originNodeId": "11223344-5566-7788-0000-000000000000",
        "originPipelineId": "''",
        "replicaIndex": 2,
        "schemaVersion": "'3'",
        "state": "CLOSED",
    }

    ours = files_of(pulled(client, SHARD))

    assert descriptor_text(fields) == ours["container.yaml"]


def test_exported_container_can_be_imported_by_another_agent(
    agent: tuple[OzoneAgent, OzoneClient], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The container passes through Ozone's protocol alone, and the roots are equal."""
    made, client = agent
    data = pulled(client, WHOLE, ZSTD)

    with served(tmp_path_factory.mktemp("other"), algorithm=Algorithm.CRC32C) as (other, sender):
        sender.upload(WHOLE, data, compression=ZSTD)

        ours, theirs = made.replica.store.view(WHOLE).tree(), other.replica.store.view(WHOLE).tree()
        assert ours.root == theirs.root
        assert ours.tombstone_count == theirs.tombstone_count == 2


@pytest.mark.parametrize(
    ("container_id", "compression", "code", "said"),
    [
        (99, 1, grpc.StatusCode.NOT_FOUND, "99"),
        (0, 1, grpc.StatusCode.INVALID_ARGUMENT, "containerID"),
        (OPEN, 1, grpc.StatusCode.FAILED_PRECONDITION, ", not closed"),
        (WHOLE, 3, grpc.StatusCode.FAILED_PRECONDITION, "LZ4 are not supported"),
        (WHOLE, 9, grpc.StatusCode.INVALID_ARGUMENT, "compression 9 is unknown"),
    ],
)
def test_unexportable_container_is_refused_with_the_reason(
    agent: tuple[OzoneAgent, OzoneClient],
    container_id: int,
    compression: int,
    code: grpc.StatusCode,
    said: str,
) -> None:
    """The download is refused before a byte is sent."""
    _, client = agent

    with pytest.raises(grpc.RpcError) as caught:
        client.download(container_id, compression)

    assert (code, True) == (caught.value.code(), said in caught.value.details())


def test_damage_is_not_sent(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """Ozone would show it as a replica that is whole; a scan is asked for instead."""
    made, client = agent
    path = made.replica.file(101, WHOLE)
    data = bytearray(path.read_bytes())
    data[2500] ^= 1
    path.write_bytes(data)

    with pytest.raises(grpc.RpcError) as caught:
        client.download(WHOLE)

    assert "the chunk at 2000 of block 101 is damaged" in caught.value.details()
    assert [WHOLE] == made.scans


def test_export_waits_a_limited_time_for_a_leased_container(
    agent: tuple[OzoneAgent, OzoneClient],
) -> None:
    """The export is refused as exhausted when the lease is not released."""
    made, client = agent

    with made.replica.leases.hold(WHOLE), pytest.raises(grpc.RpcError) as caught:
        client.download(WHOLE)

    assert grpc.StatusCode.RESOURCE_EXHAUSTED is caught.value.code()


@pytest.mark.parametrize("is_scanned", [False, True])
def test_replica_with_lost_rows_is_not_exported(
    agent: tuple[OzoneAgent, OzoneClient], *, is_scanned: bool
) -> None:
    """An archive has no place for bytes without a row, and Ozone would take the archive for
    complete.
    """
    made, client = agent
    index = made.replica.store.volume_set.places[WHOLE].index
    if is_scanned:
        index.write(lambda rows: rows.delete_block(WHOLE, BlockId(101)))
        made.replica.scan(WHOLE)
    else:
        lost = ScanFinding(
            WHOLE, Verdict.CORRUPT, DamageFault.BLOCK_ROW_MISSING, BlockId(-1), -1, -1, 0, ""
        )
        index.write(lambda rows: rows.delete_block(WHOLE, BlockId(101)))
        index.write(lambda rows: rows.replace_findings(WHOLE, [lost]))

    with pytest.raises(grpc.RpcError) as caught:
        client.download(WHOLE)

    assert "block 101 has data but no readable row" in caught.value.details()
