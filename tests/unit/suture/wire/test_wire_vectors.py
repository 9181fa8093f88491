"""The bytes in docs/WIRE.md are those of the code."""

import re
from pathlib import Path

from google.protobuf.message import Message

from merkle.checksum import Algorithm, window_checksums
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo, ContainerId
from merkle.tree_building import TreeBuilder
from suture.errors import Code, RefusedError
from suture.wire.mapping import codec
from suture.wire.mapping.errors import to_status
from suture.wire.mapping.tree_pages import pages, parse_selection
from suture.wire.v1 import datanode_pb2 as pb

WIRE = Path(__file__).parents[4] / "docs" / "WIRE.md"
CONTAINER = ContainerId(7)


def vectors() -> dict[str, Message]:
    """Return the messages by the name they have in the document."""
    data = b"B" * 100
    sums = window_checksums(ChecksumType.CRC32C, 16_384, data)
    chunk = ChunkInfo(0, len(data), ChecksumType.CRC32C, 16_384, sums)
    block = BlockData(BlockId(9), Bcsid(3), (chunk,), (("key", "a"),))
    builder = TreeBuilder(Algorithm.CRC32C)
    builder.add_block(9)
    builder.add_chunk(0, len(data), sums)
    builder.add_tombstone(11, 5)
    tree = builder.build(generation=2)
    asked = pb.GetContainerHashesRequest(container_id=CONTAINER, level=pb.CHUNKS)
    refused = RefusedError(
        Code.CONTAINER_NOT_FOUND, "no container 7", hint="ask the SCM", container_id=7
    )
    return {
        "ChunkInfo": codec.chunk_message(chunk),
        "BlockData": codec.block_message(CONTAINER, block),
        "ReadChunkRequest": pb.ReadChunkRequest(
            block_id={"container_id": CONTAINER, "local_id": 9}, offset=0
        ),
        "HashesPage": next(pages(tree, parse_selection(asked))),
        "Status": to_status(refused),
    }


def encoded() -> dict[str, str]:
    """Return the vectors as hexadecimal."""
    return {
        name: message.SerializeToString(deterministic=True).hex()
        for name, message in vectors().items()
    }


class TestVectors:
    def test_the_document_has_the_bytes_of_the_code(self) -> None:
        """Another implementation can be tested against the page."""
        written = dict(re.findall(r"^    (\w+) ([0-9a-f]+)$", WIRE.read_text(), re.M))

        assert encoded() == written

    def test_the_bytes_are_read_as_they_were_meant(self) -> None:
        """Parsing the vectors gives the messages back."""
        for name, message in vectors().items():
            assert message == type(message).FromString(bytes.fromhex(encoded()[name]))
