"""What a stranger may put into the stream of a replica: names, numbers and packed data that lie."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from agent.rpc.v1 import container_pb2
from agent.transfer.parts import PART_BYTES
from tests.support.pushed import Pair, decoded, put_mixed, refused, serving_pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A source that has a replica of large and small blocks, and a target."""
    with serving_pair(tmp_path) as made:
        put_mixed(made.source)
        yield made


class TestHostileStreams:
    """Whatever comes is refused with a reason, and leaves nothing behind."""

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("container_id", 0),
            ("container_id", 2**63),
            ("replica_index", 2**31),
            ("bcsid", 2**63),
            ("data_bytes", 2**63),
            ("created_at_ms", 2**64 - 1),
            ("origin_datanode_id", "../" * 30 + "etc"),
            ("origin_datanode_id", "dn\nstate: OPEN"),
            ("origin_datanode_id", "x" * 100_000),
            ("state", 999),
            ("former_state", 1),
        ],
    )
    def test_a_header_of_hostile_values_is_refused(
        self, pair: Pair, field: str, value: int | str
    ) -> None:
        """
        What becomes a directory, a row or a line of the descriptor is a number, or a plain name.
        """
        parts = list(decoded(pair.source))
        if field == "former_state":
            parts[0].header.state = container_pb2.UNHEALTHY
        setattr(parts[0].header, field, value)

        assert "MALFORMED_REQUEST" == refused(pair, parts)

    @pytest.mark.parametrize("local_id", [0, 2**63, 2**64 - 1])
    def test_block_ids_that_are_none_are_refused(self, pair: Pair, local_id: int) -> None:
        """
        A file is named by the number of its block, and by nothing else of what comes.
        """
        parts = list(decoded(pair.source))
        small = next(part.blocks for part in parts if len(part.blocks.local_ids) == 4)
        small.local_ids[3] = local_id

        assert "MALFORMED_REQUEST" == refused(pair, parts)

    @pytest.mark.parametrize("harm", ["bomb", "size unknown", "no frame", "lying size"])
    def test_what_unpacks_to_more_than_a_part_is_refused(self, pair: Pair, harm: str) -> None:
        """
        A few bytes that would become gigabytes are not unpacked to find out.
        """
        parts = list(decoded(pair.source))
        parts[0].header.compressed = True
        blocks = next(part.blocks for part in parts if part.blocks.data)
        match harm:
            case "bomb":
                blocks.data = zstandard.compress(bytes(PART_BYTES * 64), 19)
            case "size unknown":
                packer = zstandard.ZstdCompressor(write_content_size=False)
                blocks.data = packer.compress(bytes(PART_BYTES * 64))
            case "no frame":
                blocks.data = b"x" * 100
            case "lying size":
                whole = bytearray(zstandard.compress(bytes(PART_BYTES - 1)))
                blocks.data = bytes(whole[:5]) + b"\x07" + bytes(whole[6:])
        assert len(blocks.data) < PART_BYTES

        assert "MALFORMED_REQUEST" == refused(pair, parts)
