"""Whatever bytes lie where Ozone's should: they are read, or refused in a way that is known."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from merkle.blockrow import decode_block, encode_block
from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ContainerId
from ozone.disk.blockrow import decode_stored, folds_of
from ozone.disk.descriptor import decode_descriptor
from ozone.disk.layout import find_volume, number_of, read_properties
from ozone.disk.messages import BLOCK_DATA, CHECKSUM_INFO
from ozone.disk.treefile import decode_tree
from ozone.disk.unsupported_format import UnsupportedFormat
from suture.errors import RefusedError
from tests.support.ozone.ozone_volumes import chunk_message, descriptor_text, golden, lines

HERE, BLOCK = ContainerId(1), BlockId(117883640217600003)

numbers = st.integers(-(2**63), 2**63 - 1)
counts = st.integers(0, 2**64 - 1)
chunks = st.builds(
    lambda offset, length, kind, window, sums: {
        "offset": offset,
        "length": length,
        "checksum_data": {"type": kind, "bytes_per_checksum": window, "checksums": sums},
    },
    st.integers(0, 2**24) | counts,
    st.integers(0, 2**16) | counts,
    st.integers(0, 7) | numbers,
    st.integers(0, 2**15) | counts,
    st.lists(st.binary(max_size=33), max_size=3),
)
rows = st.builds(
    lambda block_id, bcsid, found, keys: BLOCK_DATA(
        block_id={"container_id": HERE, "local_id": block_id, "bcsid": bcsid},
        chunks=found,
        metadata=[{"key": key, "value": ""} for key in keys],
    ).SerializeToString(),
    st.just(BLOCK) | numbers,
    counts,
    st.lists(chunks | st.just(chunk_message(b"whole", 0)), max_size=3),
    st.lists(st.sampled_from(["incremental", "TYPE"]), max_size=2),
)
trees = st.builds(
    lambda root, blocks: CHECKSUM_INFO(
        container_id=HERE, tree={"checksum": root, "blocks": blocks}
    ).SerializeToString(),
    numbers,
    st.lists(
        st.fixed_dictionaries(
            {"block_id": numbers, "checksum": numbers, "deleted": st.booleans()},
            optional={"chunks": st.lists(st.builds(lambda leaf: {"checksum": leaf}, numbers))},
        ),
        max_size=3,
    ),
)
yaml_words = st.one_of(
    st.sampled_from(["!<KeyValueContainerData>\n", "!!binary |-\n", "!!python/object:os.system "]),
    st.sampled_from(
        ["&a ", "*a ", "- ", ": ", "? ", "<<: ", "{", "}", "[", "]", "\n", "  ", "\x00"]
    ),
    st.sampled_from(["state", "checksum: ", "containerID", "0" * 64, "'3'", "2020-99-99", "1e999"]),
)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What Ozone wrote, replica by replica."""
    return lines(golden(tmp_path_factory.mktemp("golden")) / "scanned.jsonl")


@given(st.none() | rows | st.binary(max_size=200), rows | st.binary(max_size=200))
def test_rows_are_read_or_refused(tail: bytes | None, row: bytes) -> None:
    """
    A row becomes a block that our own form can hold and give back, or is Damaged, or Unknown.
    """
    with contextlib.suppress(DamagedData, UnsupportedFormat):
        stored = decode_stored(HERE, BLOCK, row, tail)
        folds_of(stored)
        assert stored.block == decode_block(BLOCK, encode_block(stored.block))


@given(trees | st.binary(max_size=200))
def test_trees_are_read_or_refused(data: bytes) -> None:
    """
    A tree file is a tree, or Damaged.
    """
    with contextlib.suppress(DamagedData):
        tree = decode_tree(data, HERE)
        assert not tree.live.keys() & tree.tombstones.keys()


@given(
    st.binary(max_size=300) | st.lists(yaml_words, max_size=30).map(lambda w: "".join(w).encode())
)
def test_descriptors_are_read_or_refused(data: bytes) -> None:
    """
    A descriptor is read, or Damaged, or Unknown: YAML has many ways to be strange.
    """
    with contextlib.suppress(DamagedData, UnsupportedFormat):
        decode_descriptor(data, HERE)


@given(st.data())
def test_changed_byte_of_a_real_file_is_at_most_refused(
    real: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Real rows, trees and descriptors with one byte changed are read or refused."""
    replica = data.draw(st.sampled_from(real))
    item = data.draw(st.sampled_from(replica["blocks"]))
    container_id = ContainerId(replica["container"])
    row, tree = bytes.fromhex(item["proto"]), bytes.fromhex(replica["tree"])
    descriptor = descriptor_text({"containerID": container_id, "state": "CLOSED"})

    def changed(whole: bytes) -> bytes:
        at = data.draw(st.integers(0, len(whole) - 1))
        return whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]

    with contextlib.suppress(DamagedData, UnsupportedFormat):
        decode_stored(container_id, BlockId(item["id"]), changed(row), None)
    with contextlib.suppress(DamagedData):
        decode_tree(changed(tree), container_id)
    with contextlib.suppress(DamagedData, UnsupportedFormat):
        decode_descriptor(changed(descriptor), container_id)


@given(st.text(max_size=25) | st.integers().map(str))
def test_a_name_is_a_number_in_one_way_only(text: str) -> None:
    """
    Two names never stand for one block.
    """
    number = number_of(text)

    assert number is None or (str(number) == text and 0 <= number < 2**63)


@given(st.binary(max_size=200))
def test_a_version_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    """
    Any content of VERSION is a volume or a refusal; what it names never leads elsewhere.
    """
    hdds = tmp_path_factory.mktemp("hdds")
    (hdds / "VERSION").write_bytes(b"storageID=a\nclusterID=b\ndatanodeUuid=c\n" + raw)

    with contextlib.suppress(RefusedError):
        volume = find_volume(hdds)
        assert hdds in volume.database.parents
    read_properties(raw.decode("utf-8", "replace"))
