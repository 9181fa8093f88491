"""What Ozone is given of our blocks and trees is, byte by byte, what Ozone itself writes."""

import base64
from typing import Any

import pytest

from merkle.blockrow import encode_block
from merkle.checksum import Algorithm
from merkle.damaged_data import DamagedData
from merkle.replica import (
    METADATA_BYTES_MAX,
    Bcsid,
    BlockData,
    BlockId,
    ChecksumType,
    ChunkInfo,
    ContainerId,
    ReplicaState,
)
from merkle.tree_building import build_from_rows
from ozone.disk.descriptor import OzoneDescriptor, decode_descriptor, encode_descriptor
from ozone.disk.encoding import STRIPE, STRIPES, decode_noted, encode_row, encode_tree_file
from ozone.disk.messages import BLOCK_DATA, CHECKSUM_INFO
from ozone.disk.treefile import decode_tree
from tests.support.ozone.ozone_volumes import descriptor_text, golden_table

UUID = "d53984aa-2ff2-43a5-9dca-7d8a07666af4"


@pytest.fixture(scope="module")
def replicas() -> list[dict[str, Any]]:
    """Return what Ozone's datanodes had of sixteen replicas, rows and trees as Ozone wrote them."""
    return golden_table("closed.jsonl")


def named(rows: bytes) -> bytes:
    """Return a row with the chunks' names made plain: clients choose them, nobody reads by them."""
    message = BLOCK_DATA.FromString(rows)
    for chunk in message.chunks:
        chunk.name = ""
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def test_rows_are_those_of_ozone(replicas: list[dict[str, Any]]) -> None:
    """A row read from Ozone and written for it again is the same, in Ratis containers and in
    shards, except for the names of chunks. Tails of unclosed files are included.
    """
    count = 0
    for one in replicas:
        container_id = ContainerId(one["container"])
        for item in one["blocks"]:
            row = bytes.fromhex(item["proto"])
            stored = decode_noted(container_id, BlockId(item["id"]), row, None)
            if b"incremental" in row:
                continue
            assert named(row) == named(encode_row(container_id, stored.block, one["index"]))
            count += 1

    assert count > 50


def test_trees_are_those_of_ozone(replicas: list[dict[str, Any]]) -> None:
    """
    The tree file made from a replica's rows and tombstones is the one that Ozone made on close.
    """
    for one in replicas:
        container_id = ContainerId(one["container"])
        theirs = bytes.fromhex(one["tree"])
        blocks = [
            decode_noted(container_id, BlockId(item["id"]), bytes.fromhex(item["proto"]), None)
            for item in sorted(one["blocks"], key=lambda item: int(item["id"]))
        ]
        rows = [(stored.block.block_id, encode_block(stored.block)) for stored in blocks]
        tombstones = decode_tree(theirs, container_id).tombstones
        tree = build_from_rows(rows, tombstones, algorithm=Algorithm.CRC32C)

        ours = encode_tree_file(container_id, tree, tree.root)

        assert CHECKSUM_INFO.FromString(theirs) == CHECKSUM_INFO.FromString(ours)


def test_a_stripes_checksum_is_kept_and_given_back() -> None:
    """Ozone's record of an erasure-coded chunk's stripe is in the written row again."""
    chunk = {
        "name": "9_chunk_1",
        "offset": 0,
        "length": 5,
        "checksum_data": {"type": ChecksumType.CRC32, "bytes_per_checksum": 16384,
                          "checksums": [b"sum!"]},
        "stripe_checksum": bytes(range(200)),
    }  # fmt: skip
    named_block = {"container_id": 1, "local_id": 9, "bcsid": 3, "replica_index": 2}
    row = BLOCK_DATA(block_id=named_block, chunks=[chunk], size=5).SerializeToString()

    stored = decode_noted(ContainerId(1), BlockId(9), row, None)

    assert [f"{STRIPE}0"] == [key for key, _ in stored.block.metadata]
    assert row == encode_row(ContainerId(1), stored.block, 2)


@pytest.mark.parametrize(
    "value", ["", "AAAA", "!", base64.b64encode(bytes(8) + b"\xff" * 40).decode()]
)
def test_packed_stripes_that_are_none_are_left_out(value: str) -> None:
    """A foreign value under that key is no checksum and no error."""
    chunk = ChunkInfo(0, 5, ChecksumType.NONE, 16384, b"")
    block = BlockData(BlockId(9), Bcsid(3), (chunk,), ((f"{STRIPES}0", value),))

    row = BLOCK_DATA.FromString(encode_row(ContainerId(1), block, 2))

    assert [b""] == [one.stripe_checksum for one in row.chunks]


def test_stripes_that_do_not_fit_are_left_out_alone() -> None:
    """
    A block of more stripe checksums than there is room for notes keeps the client's notes.
    """
    chunks = [
        {
            "name": str(at),
            "offset": at * 5,
            "length": 5,
            "checksum_data": {"type": ChecksumType.NONE, "bytes_per_checksum": 16384},
            "stripe_checksum": bytes(METADATA_BYTES_MAX // 4),
        }
        for at in range(4)
    ]
    row = BLOCK_DATA(
        block_id={"container_id": 1, "local_id": 9, "bcsid": 3}, chunks=chunks,
        metadata=[{"key": "TYPE", "value": "KEY"}],
    ).SerializeToString()  # fmt: skip

    stored = decode_noted(ContainerId(1), BlockId(9), row, None)

    assert (("TYPE", "KEY"),) == stored.block.metadata
    encode_block(stored.block)


def test_the_mark_of_a_file_never_closed_goes_when_its_last_chunk_is_with_the_rest() -> None:
    """
    With the mark, Ozone would look for a last chunk that is in the row already.
    """
    sums = {"type": ChecksumType.NONE, "bytes_per_checksum": 16384}
    first = {"name": "a", "offset": 0, "length": 5, "checksum_data": sums}
    last = {"name": "b", "offset": 5, "length": 2, "checksum_data": sums}
    block_id = {"container_id": 1, "local_id": 9, "bcsid": 3}
    note = [{"key": "incremental", "value": ""}]
    row = BLOCK_DATA(block_id=block_id, chunks=[first], metadata=note).SerializeToString()
    tail = BLOCK_DATA(block_id=block_id, chunks=[last], metadata=note).SerializeToString()

    stored = decode_noted(ContainerId(1), BlockId(9), row, tail)

    assert (1, ()) == (stored.tail_count, stored.block.metadata)
    assert 7 == BLOCK_DATA.FromString(encode_row(ContainerId(1), stored.block, 0)).size


@pytest.mark.parametrize("index", [0, 3])
def test_a_descriptor_is_as_ozone_writes_it(index: int) -> None:
    """
    Each field as SnakeYAML writes it, under the checksum of the whole.
    """
    fields: dict[str, Any] = {
        "chunksPath": "/data/1/chunks",
        "containerDBType": "RocksDB",
        "containerID": 7,
        "containerType": "KeyValueContainer",
        "layOutVersion": 2,
        "maxSize": 5368709120,
        "metadata": "{}",
        "metadataPath": "/data/1/metadata",
        "originNodeId": UUID,
        "originPipelineId": "''",
        "schemaVersion": "'3'",
        "state": "QUASI_CLOSED",
    }
    descriptor = OzoneDescriptor(
        container_id=ContainerId(7),
        state=ReplicaState.QUASI_CLOSED,
        replica_index=index,
        schema=3,
        origin_node_id=UUID,
        origin_pipeline_id="",
        scanned_at_ms=0,
        is_verified=True,
        bytes_max=5368709120,
    )
    wanted = descriptor_text(fields | ({"replicaIndex": index} if index else {}))

    written = encode_descriptor(descriptor, "/data/1")

    assert wanted == written
    assert descriptor == decode_descriptor(written, ContainerId(7))


@pytest.mark.parametrize("place", ["a b", "x: y", "ü", "a\nstate: OPEN"])
def test_a_descriptor_of_text_that_is_not_plain_is_refused(place: str) -> None:
    """Text that YAML could read as more than one plain value is not written."""
    descriptor = OzoneDescriptor(
        container_id=ContainerId(7), state=ReplicaState.CLOSED, replica_index=0, schema=3,
        origin_node_id="", origin_pipeline_id="", scanned_at_ms=0, is_verified=True,
    )  # fmt: skip

    with pytest.raises(ValueError, match="is not plain"):
        encode_descriptor(descriptor, place)


@pytest.mark.parametrize("part", [b"TYPE", b"KEY"])
def test_a_note_that_is_no_text_is_damage(part: bytes) -> None:
    """protobuf returns it as bytes without an error. It is not an error of the agent."""
    message = BLOCK_DATA(block_id={"container_id": 1, "local_id": 9})
    message.metadata.add(key="TYPE", value="KEY")
    row = message.SerializeToString().replace(part, part[:-1] + b"\xff")

    with pytest.raises(DamagedData, match="a note that is no text"):
        decode_noted(ContainerId(1), BlockId(9), row, None)
