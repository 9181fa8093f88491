"""The door for what comes from outside."""

from contextlib import suppress

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from merkle.checksum import Algorithm, checksum_width_bytes, window_count
from merkle.replica import (
    BLOCK_BYTES_MAX,
    CHUNK_BYTES_MAX,
    ID_MAX,
    WINDOW_BYTES_MAX,
    WINDOW_BYTES_MIN,
    Bcsid,
    BlockData,
    BlockId,
    ChecksumType,
    ChunkInfo,
    ContainerId,
    ReplicaState,
)
from merkle.tree_summary import TreeSummary
from suture.errors import Code, RefusedError
from suture.wire.mapping import codec
from suture.wire.v1 import container_pb2 as pb

CONTAINER = ContainerId(7)


def chunk(**changes: object) -> pb.ChunkInfo:
    """Return a valid chunk of 10,000 bytes, with changes to its fields."""
    values: dict[str, object] = {
        "offset": 0,
        "length": 10_000,
        "type": pb.CRC32C,
        "window": 4_096,
        "sums": bytes(12),
    }
    values |= changes
    return pb.ChunkInfo(
        offset=values["offset"],  # type: ignore[arg-type]
        length=values["length"],  # type: ignore[arg-type]
        checksum=pb.ChecksumData(
            type=values["type"],  # type: ignore[arg-type]
            bytes_per_checksum=values["window"],  # type: ignore[arg-type]
            checksums=values["sums"],  # type: ignore[arg-type]
        ),
    )


def block(*chunks: pb.ChunkInfo, **changes: object) -> pb.BlockData:
    """Return a valid block of these chunks, with changes to its fields."""
    size = sum(item.length for item in chunks)
    key = pb.BlockId(container_id=7, local_id=9, bcsid=3)
    values: dict[str, object] = {"block_id": key, "chunks": chunks, "size": size} | changes
    return pb.BlockData(**values)  # type: ignore[arg-type]


def refusal(parse: object, *arguments: object) -> tuple[Code, str]:
    """Return code and field of the refusal."""
    with pytest.raises(RefusedError) as raised:
        parse(*arguments)  # type: ignore[operator]
    return raised.value.code, raised.value.facts.get("field", "")


class TestChunk:
    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"length": 0, "sums": b""}, "c.length"),
            ({"length": CHUNK_BYTES_MAX + 1}, "c.length"),
            ({"length": 2**64 - 1}, "c.length"),
            ({"offset": 2**64 - 1}, "c.offset"),
            ({"offset": BLOCK_BYTES_MAX}, "c"),
            ({"window": 0}, "c.checksum.bytes_per_checksum"),
            ({"window": WINDOW_BYTES_MIN - 1}, "c.checksum.bytes_per_checksum"),
            ({"window": WINDOW_BYTES_MAX + 1}, "c.checksum.bytes_per_checksum"),
            ({"window": 2**32 - 1}, "c.checksum.bytes_per_checksum"),
            ({"sums": bytes(11)}, "c.checksum.checksums"),
            ({"sums": bytes(16)}, "c.checksum.checksums"),
            ({"type": pb.SHA256}, "c.checksum.checksums"),
            ({"type": pb.NONE}, "c.checksum.checksums"),
        ],
    )
    def test_a_broken_field_is_named(self, changes: dict[str, object], field: str) -> None:
        """The refusal names the field and the rule."""
        assert (Code.MALFORMED_REQUEST, field) == refusal(codec.parse_chunk, chunk(**changes), "c")

    def test_an_unknown_checksum_type_is_its_own_error(self) -> None:
        """The hint of the refusal names the types that there are."""
        assert (Code.NO_SUCH_ALGORITHM, "c.checksum.type") == refusal(
            codec.parse_chunk, chunk(type=77), "c"
        )

    def test_a_chunk_without_checksums_is_only_for_writing(self) -> None:
        """A chunk that is read back or sent by a peer must have its checksum type."""
        message = chunk(type=pb.CHECKSUM_TYPE_UNSPECIFIED, sums=b"")

        assert Code.NO_SUCH_ALGORITHM is refusal(codec.parse_chunk, message, "c")[0]
        assert codec.UNSTATED is codec.parse_written_chunk(message, "c").checksum_type

    def test_checksums_without_their_type_are_refused(self) -> None:
        """Their type is not guessed."""
        message = chunk(type=pb.CHECKSUM_TYPE_UNSPECIFIED)

        assert "c.checksum.type" == refusal(codec.parse_written_chunk, message, "c")[1]


class TestBlock:
    @pytest.mark.parametrize(
        ("message", "field"),
        [
            (block(chunk(), size=9_999), "b.size"),
            (block(chunk(), size=2**64 - 1), "b.size"),
            (block(chunk(), chunk()), "b.chunks[1].offset"),
            (block(chunk(offset=10_000), chunk()), "b.chunks[1].offset"),
            (block(block_id=pb.BlockId(container_id=7)), "b.block_id.local_id"),
            (block(block_id=pb.BlockId(local_id=9)), "b.block_id.container_id"),
            (
                block(block_id=pb.BlockId(container_id=ID_MAX + 1, local_id=9)),
                "b.block_id.container_id",
            ),
            (
                block(block_id=pb.BlockId(container_id=7, local_id=9, bcsid=ID_MAX + 1)),
                "b.block_id.bcsid",
            ),
            (
                block(block_id=pb.BlockId(container_id=7, local_id=9, replica_index=99)),
                "b.block_id.replica_index",
            ),
            (block(metadata=[pb.KeyValue(key="k" * 5_000)]), "b.metadata[0].key"),
            (block(metadata=[pb.KeyValue(key="k", value="\0")]), "b.metadata[0].value"),
            (block(metadata=[pb.KeyValue(key="k")] * 65), "b.metadata"),
            (block(metadata=[pb.KeyValue(key="k", value="v" * 4_000)] * 20), "b.metadata"),
        ],
    )
    def test_a_broken_field_is_named(self, message: pb.BlockData, field: str) -> None:
        """The refusal names the field and the rule."""
        assert (Code.MALFORMED_REQUEST, field) == refusal(codec.parse_block, message, "b")

    def test_too_many_chunks_are_refused_before_one_is_looked_at(self) -> None:
        """A hostile count costs nothing."""
        message = block()
        message.chunks.extend([pb.ChunkInfo()] * 65_536)

        assert "b.chunks" == refusal(codec.parse_block, message, "b")[1]


chunk_values = st.builds(
    lambda length, kind, window, seed: ChunkInfo(
        offset=0,
        length_bytes=length,
        checksum_type=kind,
        bytes_per_checksum=window,
        window_checksums=bytes(
            seed for _ in range(checksum_width_bytes(kind) * window_count(length, window))
        ),
    ),
    st.integers(1, 100_000),
    st.sampled_from(list(ChecksumType)),
    st.integers(WINDOW_BYTES_MIN, 20_000),
    st.integers(0, 255),
)


class TestRoundTrip:
    @given(chunk_values)
    def test_a_chunk_comes_back_as_it_was(self, value: ChunkInfo) -> None:
        """Every chunk that may exist survives the wire."""
        assert value == codec.parse_chunk(codec.chunk_message(value), "c")

    @given(
        st.lists(chunk_values, max_size=5),
        st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), max_size=4),
    )
    def test_a_block_comes_back_as_it_was(
        self, chunks: list[ChunkInfo], metadata: list[tuple[str, str]]
    ) -> None:
        """Every block is decoded as it was encoded, with its client's metadata."""
        offset, placed = 0, []
        for one in chunks:
            placed.append(
                ChunkInfo(
                    offset,
                    one.length_bytes,
                    one.checksum_type,
                    one.bytes_per_checksum,
                    one.window_checksums,
                )
            )
            offset += one.length_bytes
        pairs = tuple((key, value) for key, value in metadata if "\0" not in key + value)
        value = BlockData(BlockId(9), Bcsid(3), tuple(placed), pairs)

        message = pb.BlockData.FromString(codec.block_message(CONTAINER, value).SerializeToString())

        assert (CONTAINER, value) == codec.parse_block(message, "b")

    @pytest.mark.parametrize("algorithm", list(Algorithm))
    def test_a_summary_comes_back_as_it_was(self, algorithm: Algorithm) -> None:
        """A root of all ones is a root."""
        value = TreeSummary(algorithm, 2**64 - 1, 5, 6, 7, 2**63)

        assert value == codec.parse_summary(codec.summary_message(value), "s")

    @pytest.mark.parametrize("state", list(ReplicaState))
    def test_a_state_comes_back_as_it_was(self, state: ReplicaState) -> None:
        """All states have a number."""
        assert state is codec.parse_state(pb.ReplicaReport(state=state).state, "s")

    @given(st.binary(max_size=200))
    def test_whatever_parses_is_a_value_or_a_refusal(self, data: bytes) -> None:
        """No message of the type makes anything else happen."""
        with suppress(DecodeError):
            message = pb.BlockData.FromString(data)
            with suppress(RefusedError):
                codec.parse_block(message, "b")


class TestBlockKey:
    def test_ids_at_their_bounds_are_taken(self) -> None:
        """
        The smallest and the largest of each.
        """
        for number in (1, ID_MAX):
            message = pb.BlockId(container_id=number, local_id=number)
            assert (number, number) == codec.parse_block_key(message, "block_id")

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("container_id", 0),
            ("container_id", ID_MAX + 1),
            ("local_id", 0),
            ("local_id", ID_MAX + 1),
            ("replica_index", 2**32 - 1),
        ],
    )
    def test_id_out_of_bounds_is_refused_by_its_field_name(self, field: str, value: int) -> None:
        """0 is the value of a field that was not set."""
        message = pb.BlockId(**({"container_id": 1, "local_id": 1} | {field: value}))

        with pytest.raises(
            RefusedError, match=f"block_id.{field}: {value} is not within"
        ) as refusal:
            codec.parse_block_key(message, "block_id")
        assert Code.MALFORMED_REQUEST is refusal.value.code
