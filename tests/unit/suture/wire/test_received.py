"""What a peer sends of its blocks is bounded, complete and verified, or refused."""

import itertools
from collections.abc import Iterator

import pytest
from crc32c import crc32c
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from merkle.replica import BlockId, ChecksumType, ChunkInfo
from suture.errors import RefusedError
from suture.wire.clients.response_checks import (
    assemble_chunk,
    parse_chunks,
    parts_as_they_come,
    parts_of,
)
from suture.wire.mapping import codec
from suture.wire.mapping.blockpieces import BlockPiece, decode_piece, encode_piece
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.storage.stores import chunk_of, content

SIZE = 4_000


def test_a_chunk_that_never_ends_is_cut_off() -> None:
    """At most the stated length and one message are accepted."""
    data = content(1)
    taken: list[int] = []

    def endless() -> Iterator[pb.ReadChunkResponse]:
        yield pb.ReadChunkResponse(chunk=codec.chunk_message(chunk_of(data)))
        while len(taken) < 100:
            taken.append(1)
            yield pb.ReadChunkResponse(data=data)

    with pytest.raises(RefusedError, match="more than"):
        assemble_chunk(endless(), 0)

    assert 2 == len(taken)


def test_data_may_come_with_the_description_or_behind_it() -> None:
    """
    In any pieces; and what comes with it counts among what is too much.
    """
    data = content(1)
    chunk = chunk_of(data)
    told = codec.chunk_message(chunk)
    for cut in (0, 1, len(data)):
        pieces = [pb.ReadChunkResponse(chunk=told, data=data[:cut])]
        pieces += [pb.ReadChunkResponse(data=data[cut:])] if cut < len(data) else []

        assert (chunk, data) == assemble_chunk(iter(pieces), 0)

    with pytest.raises(RefusedError, match="more than"):
        assemble_chunk(iter([pb.ReadChunkResponse(chunk=told, data=data + b"!")]), 0)


def test_every_window_of_received_data_is_verified() -> None:
    """Damage to two windows may leave the CRC of the whole unchanged: a multiple of CRC32C's
    polynomial (RFC 3720) across the edge of a window.
    """
    multiple = (1 | 0x82F63B78 << 1).to_bytes(5, "little")
    data = bytes(16 * 512)
    bad = data[:1_022] + multiple + data[1_027:]
    chunk = chunk_of(data, bytes_per_checksum=512)
    assert crc32c(data) == crc32c(bad)

    sent = [pb.ReadChunkResponse(chunk=codec.chunk_message(chunk)), pb.ReadChunkResponse(data=bad)]
    with pytest.raises(RefusedError, match="not match the checksums"):
        assemble_chunk(iter(sent), 0)


def test_received_chunks_must_be_requested_complete_and_verified() -> None:
    """One chunk is of another block, one is short and has no checksum, one has other bytes, and
    one has no valid description.
    """
    data = content(1)
    chunk = chunk_of(data)
    unchecked = chunk._replace(checksum_type=ChecksumType.NONE, window_checksums=b"")
    told, silent = codec.chunk_message(chunk), codec.chunk_message(unchecked)
    answer = pb.ReadChunksResponse(
        chunks=[
            pb.ServedChunk(local_id=1, chunk=told, data=data),
            pb.ServedChunk(local_id=2, chunk=silent, data=data[:-1]),
            pb.ServedChunk(local_id=3, chunk=told, data=data[::-1]),
            pb.ServedChunk(local_id=4, data=data),
            pb.ServedChunk(local_id=5, chunk=told, data=data),
            pb.ServedChunk(local_id=6, chunk=silent, data=data),
        ]
    )

    served = parse_chunks(answer, [(BlockId(number), 0) for number in (1, 2, 3, 4, 6)])

    assert {(1, 0): (chunk, data), (6, 0): (unchecked, data)} == served


def piece(data: bytes, chunk: ChunkInfo | None = None) -> BlockPiece:
    """Return a message of a block."""
    return BlockPiece(None if chunk is None else codec.chunk_message(chunk), data)


def taken(*answers: BlockPiece, end: int = 1_000_000) -> list[tuple[int, bytes]]:
    """Return what is taken of a block that is sent so."""
    return list(parts_as_they_come(iter(answers), end))


class TestBlocks:
    """Blocks as a peer sends them: verified window by window, complete, and bounded."""

    @given(st.lists(st.integers(1, 1_200), max_size=6), st.integers(512, 1_500))
    def test_every_byte_that_is_taken_was_verified(self, cuts: list[int], window: int) -> None:
        """Every accepted byte is verified, however the chunk is cut into messages and wherever
        its windows end.
        """
        data = content(3)[:SIZE]
        chunk = chunk_of(data, bytes_per_checksum=window)
        edges = sorted({0, *(sum(cuts[: n + 1]) % SIZE for n in range(len(cuts))), SIZE})
        sent = [piece(data[a:b], chunk if a == 0 else None) for a, b in itertools.pairwise(edges)]

        parts = taken(*sent)

        assert data == b"".join(part for _, part in parts)
        assert all(part == data[at : at + len(part)] for at, part in parts)
        assert all(at % window == 0 for at, _ in parts)

    def test_a_window_that_is_wrong_is_not_taken(self) -> None:
        """
        Those before it are; none of it, also if it came in two messages.
        """
        data = content(3)[:SIZE]
        chunk = chunk_of(data, bytes_per_checksum=1_000)
        bad = data[:2_500] + bytes([data[2_500] ^ 1]) + data[2_501:]
        answers = iter([piece(bad[:1_000], chunk), piece(bad[1_000:2_400]), piece(bad[2_400:])])
        parts: list[bytes] = []

        with pytest.raises(RefusedError, match="not match the checksums"):
            parts.extend(part for _, part in parts_as_they_come(answers, SIZE))

        assert [data[:1_000]] == parts

    @pytest.mark.parametrize("kind", [ChecksumType.CRC32C, ChecksumType.CRC32])
    @pytest.mark.parametrize("flipped", [0, 8_191, 8_192, 20_000, 20_479])
    def test_a_bit_in_any_of_many_windows_is_seen(self, kind: ChecksumType, flipped: int) -> None:
        """The windows of one message are checked together, in the first message and in the
        second.
        """
        data = bytes(20 * 1024)
        chunk = chunk_of(data, bytes_per_checksum=512, checksum_type=kind)
        bad = data[:flipped] + b"\x10" + data[flipped + 1 :]

        assert data == b"".join(
            p for _, p in taken(piece(data[:8_192], chunk), piece(data[8_192:]))
        )
        with pytest.raises(RefusedError, match="not match the checksums"):
            taken(piece(bad[:8_192], chunk), piece(bad[8_192:]))

    def test_a_chunk_comes_whole_or_is_refused(self) -> None:
        """A chunk is refused if the answer ends, or another chunk begins, in the middle of it."""
        data = content(1)
        chunk = chunk_of(data)
        for answers in ([piece(data[:10], chunk)], [piece(data[:10], chunk), piece(data, chunk)]):
            with pytest.raises(RefusedError, match="are missing"):
                taken(*answers)

    def test_no_more_is_taken_than_was_said(self) -> None:
        """An endless row of empty messages, data of no chunk and a repeated chunk are refused."""
        data = content(1)
        chunk = chunk_of(data)
        for answers in (
            [piece(data + b"?", chunk)],
            [piece(b"", chunk)],
            [piece(data, chunk), piece(b"?")],
            [piece(data)],
        ):
            with pytest.raises(RefusedError, match="are due"):
                taken(*answers)
        with pytest.raises(RefusedError, match="0 after"):
            taken(piece(data, chunk), piece(data, chunk))

    def test_a_block_does_not_go_on_behind_its_end(self) -> None:
        """
        In neither form, and before a byte of the chunk is given on.
        """
        data = content(1)
        chunk = chunk_of(data)
        small = pb.GetSmallFileResponse(chunks=[codec.chunk_message(chunk)], data=data)
        with pytest.raises(RefusedError, match="of a block of"):
            taken(piece(data, chunk), end=len(data) - 1)
        with pytest.raises(RefusedError, match="of a block of"):
            list(parts_of(small, len(data) - 1))

    def test_small_file_answer_must_have_exactly_its_chunks(self) -> None:
        """More or fewer bytes than described are refused before any of them is passed on."""
        data = content(1)
        described = codec.chunk_message(chunk_of(data))
        right = pb.GetSmallFileResponse(chunks=[described], data=data)

        assert [(0, data)] == list(parts_of(right, len(data)))
        for wrong in (data[:-1], data + b"?", b""):
            answer = pb.GetSmallFileResponse(chunks=[described], data=wrong)
            with pytest.raises(RefusedError, match=f"{len(wrong)} of {len(data)} bytes"):
                list(parts_of(answer, len(data)))


@given(st.binary(max_size=300), st.booleans())
def test_a_piece_is_an_ordinary_message(data: bytes, is_described: bool) -> None:
    """
    Protobuf reads what is put together, and what protobuf writes is read; in any order of fields.
    """
    chunk = chunk_of(content(1)) if is_described else None
    made = piece(data, chunk)
    message = pb.ReadBlockResponse(chunk=made.chunk, data=data)

    assert message == pb.ReadBlockResponse.FromString(encode_piece(made))
    of_chunk = pb.ReadChunkResponse(chunk=made.chunk, data=data)
    assert of_chunk == pb.ReadChunkResponse.FromString(encode_piece(made))
    for encoded in (
        encode_piece(made),
        message.SerializeToString(),
        pb.ReadBlockResponse(data=data).SerializeToString()
        + pb.ReadBlockResponse(chunk=made.chunk).SerializeToString(),
    ):
        read = decode_piece(encoded)
        assert (made.chunk, data) == (read.chunk, bytes(read.data))


@given(st.binary(max_size=60))
def test_ordinary_message_is_decoded_as_protobuf_does(garbage: bytes) -> None:
    """The result is the same message or the same error."""
    try:
        expected: pb.ReadBlockResponse | None = pb.ReadBlockResponse.FromString(garbage)
    except DecodeError:
        expected = None
    try:
        read = decode_piece(garbage)
    except DecodeError:
        assert expected is None
    else:
        assert expected is not None
        assert (expected.chunk if expected.HasField("chunk") else None) == read.chunk
        assert expected.data == bytes(read.data)
