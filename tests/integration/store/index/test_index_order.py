"""An index whose keys are not where a search looks for them answers wrongly, and is refused."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.store.index.check.indexcheck import check_index
from agent.store.index.environment import Index
from agent.store.index.rows import KEY_BYTES
from agent.store.index.transactions import IndexChange
from merkle.replica import BlockId, ContainerId
from suture.errors import VolumeFailed

PAGE = 4096
MAP_BYTES = 64 * 1024**2
CONTAINERS, BLOCKS = 200, 100  # so many that branches lie over branches
KEY = 16
BRANCH, LEAF = 1, 2


@dataclass
class File:
    """The bytes of an index, page by page."""

    data: bytearray

    def nodes(self, page: int) -> list[int]:
        """Return where the keys of a page are."""
        at = page * PAGE
        lower = struct.unpack_from("<H", self.data, at + 12)[0]
        pointers = struct.unpack_from(f"<{(lower - 16) // 2}H", self.data, at + 16)
        return [at + pointer + 8 for pointer in pointers]

    def key(self, at: int) -> tuple[int, int]:
        """Return container and block of a key."""
        container_id, block_id = struct.unpack_from(">QQ", self.data, at)
        return container_id, block_id

    def pages(self, kind: int) -> Iterator[int]:
        """Yield the pages of a kind whose last key is one of ours."""
        for page in range(2, len(self.data) // PAGE):
            if struct.unpack_from("<H", self.data, page * PAGE + 10)[0] == kind:
                container_id, block_id = self.key(self.nodes(page)[-1])
                if 0 < container_id <= CONTAINERS and 0 < block_id <= BLOCKS:
                    yield page

    def by_key(self, kind: int) -> list[int]:
        """Return the same pages in the order of their keys."""
        return sorted(self.pages(kind), key=lambda page: self.key(self.nodes(page)[-1]))

    def put(self, at: int, key: tuple[int, int]) -> None:
        """Write another key in the place of one."""
        struct.pack_into(">QQ", self.data, at, *key)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the file of an index with twenty thousand tombstones, made at once."""
    directory = tmp_path_factory.mktemp("index")

    def fill(rows: IndexChange) -> None:
        for container_id in range(1, CONTAINERS + 1):
            for block_id in range(1, BLOCKS + 1):
                rows.put_tombstone(ContainerId(container_id), BlockId(block_id), 1)

    index = Index(directory, map_bytes=MAP_BYTES)
    index.write(fill)
    index.close()
    return (directory / "data.mdb").read_bytes()


def key_in_a_leaf(file: File) -> None:
    """A bit of a key flipped, in memory before it was written or on the disk."""
    leaves = file.by_key(LEAF)
    at = file.nodes(leaves[len(leaves) // 2])[5]
    container_id, block_id = file.key(at)
    file.put(at, (container_id ^ 64, block_id))


def two_leaves(file: File) -> None:
    """Each was written to the place of the other; both are whole."""
    leaves = file.by_key(LEAF)
    one, other = (page * PAGE for page in (leaves[3], leaves[40]))
    file.data[one + 8 : one + PAGE], file.data[other + 8 : other + PAGE] = (
        file.data[other + 8 : other + PAGE],
        file.data[one + 8 : one + PAGE],
    )


def last_key_of_a_leaf(file: File) -> None:
    """Within its page it is in order; the keys of the next page are lower."""
    leaf = file.by_key(LEAF)[3]
    file.put(file.nodes(leaf)[-1], (CONTAINERS, 1))


def first_key_of_a_leaf(file: File) -> None:
    """Likewise: a search for it is led to the page before."""
    leaf = file.by_key(LEAF)[3]
    file.put(file.nodes(leaf)[0], (1, 1))


def key_in_a_branch(file: File) -> None:
    """It is between its neighbours, and leads searches for some rows to the page before."""
    branch = file.by_key(BRANCH)[0]
    at = file.nodes(branch)[3]
    container_id, block_id = file.key(at)
    file.put(at, (container_id, block_id + 1))


def key_in_a_branch_out_of_order(file: File) -> None:
    """A bit of it flipped."""
    branch = file.by_key(BRANCH)[0]
    file.put(file.nodes(branch)[3], (CONTAINERS, 1))


def lost_row(file: File) -> None:
    """The page is what it was before a row was added: a write that the disk lost."""
    at = file.by_key(LEAF)[3] * PAGE + 12
    struct.pack_into("<H", file.data, at, struct.unpack_from("<H", file.data, at)[0] - 2)


def name_of_a_database(file: File) -> None:
    """LMDB would make a new one of the name that is missing: empty, with no row in it."""
    file.data[:] = file.data.replace(b"tombstones", b"tombstoner")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (key_in_a_leaf, "a key that is not in its place"),
        (two_leaves, "a key that is not in its place"),
        (last_key_of_a_leaf, "a key that is not in its place"),
        (first_key_of_a_leaf, "a key that is not in its place"),
        (key_in_a_branch, "a key that is not in its place"),
        (key_in_a_branch_out_of_order, "a key that is not in its place"),
        (lost_row, "counts 20000 rows, and has 19999"),
        (name_of_a_database, "'tombstoner' is unknown"),
    ],
)
def test_index_with_misordered_keys_is_refused(
    good: bytes, tmp_path: Path, damage: Callable[[File], None], words: str
) -> None:
    """LMDB reads every page without an error. Rows that are there would not be found, so deleted
    blocks would come back, and new rows would be written beside old ones.
    """
    (tmp_path / "data.mdb").write_bytes(good)
    check_index(tmp_path, key_bytes=KEY_BYTES, whole=True)
    file = File(bytearray(good))
    damage(file)
    assert good != file.data
    (tmp_path / "data.mdb").write_bytes(file.data)

    with pytest.raises(VolumeFailed, match=words):
        check_index(tmp_path, key_bytes=KEY_BYTES, whole=True)


def test_a_database_of_a_later_version_is_no_fault(good: bytes, tmp_path: Path) -> None:
    """After a downgrade to this version the index is accepted if all of its own databases are
    there.
    """
    (tmp_path / "data.mdb").write_bytes(good)
    known = {name: size for name, size in KEY_BYTES.items() if name != "doubts"}

    assert check_index(tmp_path, key_bytes=known, whole=True)
