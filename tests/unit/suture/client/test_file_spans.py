"""Which bytes of which blocks are a part of a file."""

from hypothesis import given
from hypothesis import strategies as st

from suture.client.file_spans import spans_of
from suture.wire.v1 import scm_pb2


@given(st.lists(st.integers(0, 5), max_size=6), st.integers(0, 35), st.none() | st.integers(0, 35))
def test_the_spans_are_the_slice(sizes: list[int], start: int, stop: int | None) -> None:
    """
    Every byte of it once and in order, and no block that has none of it.
    """
    blocks = [scm_pb2.BlockLocation(length=size_bytes) for size_bytes in sizes]
    numbered = [(block, byte) for block, size in enumerate(sizes) for byte in range(size)]
    for number, block in enumerate(blocks):
        block.block_id.local_id = number

    spans = spans_of(blocks, start, stop)

    told = [
        (span.location.block_id.local_id, byte)
        for span in spans
        for byte in range(span.start, span.stop)
    ]
    assert numbered[start:stop] == told
    assert all(span.size_bytes > 0 for span in spans)
