"""What a stranger, or the way, may do to the stream of a replica: none of it leaves a trace."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.store.replica.contradictions import KEPT_MAX
from agent.transfer.declared_damage import FINDINGS_MAX
from agent.transfer.parts import PART_BYTES
from merkle.blockrow import decode_block, encode_block
from merkle.checksum import window_checksums
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo
from merkle.tree_building import build_from_rows
from scanner.finding import DamageFault, Verdict
from suture.errors import RefusedError
from suture.wire.mapping.tree_pages import TreeQuery, pages, read_tree
from suture.wire.v1 import container_pb2
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.storage.pushed import (
    MIB,
    Pair,
    decoded,
    encoded,
    put_mixed,
    refused,
    serving_pair,
)
from tests.support.storage.stored_replica import CONTAINER


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A source that has a replica of large and small blocks, and a target."""
    with serving_pair(tmp_path) as made:
        put_mixed(made.source)
        yield made


def contradiction() -> pb.Finding:
    """Return what a source says that a peer contradicts in block 2."""
    return pb.Finding(
        verdict=Verdict.CONTRADICTORY,
        fault=DamageFault.PEER_CONTRADICTS,
        local_id=2,
        offset=0,
        length=5_000,
        found_at_ms=7,
        evidence="dn-c says otherwise",
    )


class TestHostileStreams:
    """Whatever comes is refused with a reason, and leaves nothing behind."""

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("fault", "EVERYTHING"),
            ("fault", "CHUNK_CHECKSUM"),
            ("local_id", 0),
            ("local_id", -1),
            ("offset", 2**62),
            ("length", -2),
            ("found_at_ms", 2**64 - 1),
            ("evidence", "x" * 100_000),
        ],
    )
    def test_a_contradiction_of_hostile_values_is_refused(
        self, pair: Pair, field: str, value: int | str
    ) -> None:
        """A contradiction is stored and printed, so each part must have its form."""
        parts = list(decoded(pair.source))
        told = contradiction()
        setattr(told, field, value)
        parts.insert(1, pb.ImportPart(findings=pb.ImportFindings(findings=[told])))

        assert "MALFORMED_REQUEST" == refused(pair, parts)

    @pytest.mark.parametrize("told", ["evidence", "sender"])
    def test_words_without_end_are_refused(self, pair: Pair, told: str) -> None:
        """The words are stored with each finding, and could be thousands, as large as a message."""
        parts = list(decoded(pair.source))
        damage = pb.Finding(verdict=Verdict.CORRUPT, fault=DamageFault.CHUNK_CHECKSUM, local_id=2)
        if told == "evidence":
            damage.evidence = "x" * 100_000
            parts.insert(1, pb.ImportPart(findings=pb.ImportFindings(findings=[damage])))
        else:
            parts[0].header.source_datanode_id = "x" * 100_000

        assert "MALFORMED_REQUEST" == refused(pair, parts)

    def test_a_tree_without_end_is_not_waited_for(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The tree is kept in memory until the first block comes."""
        monkeypatch.setattr("agent.transfer.incoming.TREE_BYTES_MAX", 1_000_000)
        header, *_ = decoded(pair.source)
        page = pb.ImportPart(tree=pb.HashesPage(chunk_checksums=[1] * 10_000))
        coming = encoded([header, *[page] * 1_000])

        with pytest.raises(RefusedError, match="1000000 bytes"):
            pair.target.importer.receive(coming)

        assert next(coming, None) is not None
        pair.target_is_untouched()

    def test_contradictions_and_damage_without_end_are_refused(self, pair: Pair) -> None:
        """Each kind has its own bound, so many of one kind do not displace the other."""
        parts = list(decoded(pair.source))
        damage = pb.Finding(verdict=Verdict.CORRUPT, fault=DamageFault.CHUNK_CHECKSUM, local_id=2)

        for told, count_max in ((contradiction(), KEPT_MAX), (damage, FINDINGS_MAX)):
            some = pb.ImportPart(findings=pb.ImportFindings(findings=[told] * count_max))
            one_more = pb.ImportPart(findings=pb.ImportFindings(findings=[told]))
            many = [parts[0], some, one_more, *parts[1:]]
            assert "MALFORMED_REQUEST" == refused(pair, many)
            parts.insert(1, some)

        pair.target.importer.receive(encoded(parts))

        assert KEPT_MAX == pair.target.replica.store.replica(CONTAINER).contradiction_count

    def test_a_contradiction_excuses_no_damage(self, pair: Pair) -> None:
        """
        That peers say other things of these bytes does not mean that they may be wrong.
        """
        pair.source.replica.flip(2, 7)
        parts = list(decoded(pair.source))
        told = pb.ImportPart(findings=pb.ImportFindings(findings=[contradiction()]))
        parts.insert(1, told)

        assert "CHECKSUM_MISMATCH" == refused(pair, parts)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("container_id", 0),
            ("container_id", 2**63),
            ("replica_index", 2**31),
            ("bcsid", 2**63),
            ("data_bytes", 2**63),
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
        """A value that becomes a directory, a row or a line of the descriptor must be a number
        or a plain name.
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

    def test_part_with_more_data_than_a_message_holds_is_refused(self, pair: Pair) -> None:
        """The memory for one message is bounded."""
        parts = list(decoded(pair.source))
        next(part.blocks for part in parts if part.blocks.data).data = bytes(PART_BYTES + 1)

        assert "MALFORMED_REQUEST" == refused(pair, parts)


class TestForgedRows:
    """Rows that contradict the data, under a tree that was made to fit them."""

    @pytest.mark.parametrize("harm", ["sum of all in place of the first", "a file that is short"])
    def test_a_checksum_of_other_bytes_is_no_checksum(self, pair: Pair, harm: str) -> None:
        """
        Each window has its own checksum, and each chunk all of its bytes.
        """
        parts = list(decoded(pair.source))
        small = next(part.blocks for part in parts if len(part.blocks.local_ids) == 4)
        size_bytes = small.file_bytes[3]
        data = small.data[-size_bytes:]
        if harm == "a file that is short":
            chunk = ChunkInfo(0, 2 * size_bytes, ChecksumType.CRC32C, MIB, sum_of(data))
        else:
            sums = sum_of(data) + sum_of(data[4_096:])
            chunk = ChunkInfo(0, size_bytes, ChecksumType.CRC32C, 4_096, sums)
        block = BlockData(BlockId(small.local_ids[3]), Bcsid(1), (chunk,))
        small.rows[3] = encode_block(block)

        assert "CHECKSUM_MISMATCH" == refused(pair, with_fitting_tree(parts))

    def test_a_row_that_is_right_under_such_a_tree_is_taken(self, pair: Pair) -> None:
        """
        Otherwise the test above would show nothing.
        """
        pair.target.importer.receive(encoded(with_fitting_tree(list(decoded(pair.source)))))

        assert pair.source.files() == pair.target.files()


def sum_of(data: bytes) -> bytes:
    """Return the checksum of one window."""
    return window_checksums(ChecksumType.CRC32C, len(data), data)


def with_fitting_tree(parts: list[pb.ImportPart]) -> list[pb.ImportPart]:
    """Return the stream with the tree that its rows fold to."""
    [announced] = [part.tree for part in parts if part.WhichOneof("part") == "tree"]
    rows = [
        (BlockId(block_id), row)
        for part in parts
        for block_id, row in zip(part.blocks.local_ids, part.blocks.rows, strict=True)
    ]
    _, known = read_tree(iter([announced]))
    tree = build_from_rows(rows, {}, algorithm=known.algorithm, generation=known.generation)
    everything = TreeQuery(pb.CHUNKS, *[np.empty(0, np.uint64)] * 4)
    [page] = pages(tree, everything)
    return [
        pb.ImportPart(tree=page) if part.WhichOneof("part") == "tree" else part for part in parts
    ]


class TestBrokenStreams:
    """What was cut, changed or mixed up on its way is refused, and leaves nothing behind."""

    def test_a_stream_cut_anywhere_leaves_nothing(self, pair: Pair) -> None:
        """
        After each message the stream may end: nothing can be seen then.
        """
        parts = list(decoded(pair.source))

        for count in range(len(parts)):
            assert "MALFORMED_REQUEST" == refused(pair, parts[:count])

    def test_flipped_data_is_refused(self, pair: Pair) -> None:
        """
        A bit that changed on the way is found by its window, in large blocks and small ones.
        """
        whole = list(decoded(pair.source))
        for number, part in enumerate(whole):
            if part.WhichOneof("part") != "blocks" or not part.blocks.data:
                continue
            for at in (0, len(part.blocks.data) // 2, len(part.blocks.data) - 1):
                parts = list(decoded(pair.source))
                data = bytearray(part.blocks.data)
                data[at] ^= 1
                parts[number].blocks.data = bytes(data)

                assert "CHECKSUM_MISMATCH" == refused(pair, parts)

    def test_rows_that_are_not_of_the_tree_are_refused(self, pair: Pair) -> None:
        """
        A block that was left out, with its data, is missed by the tree.
        """
        parts = list(decoded(pair.source))
        small = next(part.blocks for part in parts if len(part.blocks.local_ids) == 4)
        size = small.file_bytes[3]
        del small.local_ids[3], small.rows[3], small.file_bytes[3]
        small.data = small.data[:-size]
        parts[-1].end.block_count -= 1
        parts[-1].end.data_bytes -= size

        assert "CHECKSUM_MISMATCH" == refused(pair, parts)

    @pytest.mark.parametrize(
        "harm",
        ["ids descend", "rows missing", "too long", "too short", "size", "count", "state", "tree"],
    )
    def test_contradictions_are_refused(self, pair: Pair, harm: str) -> None:
        """
        Counts, sizes, orders and states that cannot be are named as malformed.
        """
        parts = list(decoded(pair.source))
        small = next(part.blocks for part in parts if len(part.blocks.local_ids) == 4)
        match harm:
            case "ids descend":
                small.local_ids[1] = 1
            case "rows missing":
                del small.rows[3]
            case "too long":
                small.data += b"x"
            case "too short":
                small.data = small.data[:-1]
            case "size":
                small.file_bytes[3] = -2
            case "count":
                parts[-1].end.block_count += 1
            case "state":
                parts[0].header.state = 1
            case "tree":
                parts[1].tree.block_checksums[0] ^= 1

        assert "MALFORMED_REQUEST" == refused(pair, parts)

    def test_chunks_that_no_tree_can_hold_are_refused(self, pair: Pair) -> None:
        """
        Two chunks at one place, in a row that is whole in itself.
        """
        parts = list(decoded(pair.source))
        small = next(part.blocks for part in parts if len(part.blocks.local_ids) == 4)
        nothing = ChunkInfo(0, 0, ChecksumType.NONE, 0, b"")
        block_id = BlockId(small.local_ids[1])
        whole = decode_block(block_id, small.rows[1])
        small.rows[1] = encode_block(replace(whole, chunks=(nothing, *whole.chunks)))

        assert "MALFORMED_REQUEST" == refused(pair, parts)

    def test_more_than_was_announced_is_refused(self, pair: Pair) -> None:
        """
        A sender cannot fill the disk behind a small announcement.
        """
        parts = list(decoded(pair.source))
        parts[0].header.data_bytes = 1

        assert "MALFORMED_REQUEST" == refused(pair, parts)
