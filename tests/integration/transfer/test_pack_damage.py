"""Every damage to a file that small blocks share is found where it is, and repaired."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.store.files import blockfile
from agent.store.files.layout import PACK_NAME
from agent.store.index.packformat import (
    FOOTER_BYTES,
    PACKED_BYTES_MAX,
    PAGE_BYTES,
    PackedBlocks,
    encode_packed,
)
from agent.store.replica.packs import unpack
from merkle.replica import BlockId, ReplicaState
from scanner.finding import DamageFault
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.packed import (
    OWN_FILES,
    SIZES,
    TWO,
    contents,
    damage,
    findings,
    lose_row,
    mended,
    pack_of,
    packed_pair,
    packed_rows,
    place_of,
    problems,
    row_key,
)
from tests.support.storage.pushed import Pair
from tests.support.storage.stored_replica import CONTAINER


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two datanodes; the target has packed what the source sent it."""
    with packed_pair(tmp_path) as made:
        yield made


def break_reads(
    monkeypatch: pytest.MonkeyPatch, number: int, is_bad: Callable[[int, int], bool]
) -> list[int]:
    """Make direct reads of packs fail by offset and size; return the offsets of those that did."""
    refused: list[int] = []
    real = os.preadv

    def failing(fd: int, buffers: list[memoryview], offset: int, *flags: int) -> int:
        if PACK_NAME == Path(f"/proc/self/fd/{fd}").resolve().name and is_bad(
            offset, len(buffers[0])
        ):
            refused.append(offset)
            raise OSError(number, os.strerror(number))
        return real(fd, buffers, offset, *flags)

    monkeypatch.setattr(os, "preadv", failing)
    return refused


class TestDamage:
    """Every damage is found where it is, and repaired."""

    def test_damaged_block_of_a_pack_gets_a_file_of_its_own(self, pair: Pair) -> None:
        """The file has the peer's bytes, and the old ones go to quarantine."""
        damage(pair.target, 2)
        before = pack_of(pair.target).read_bytes()
        assert [(2, DamageFault.CHUNK_CHECKSUM)] == findings(pair.target)

        assert 1 == mended(pair)

        assert pair.source.replica.file(2).read_bytes() == pair.target.replica.file(2).read_bytes()
        assert pair.target.replica.store.pack(CONTAINER).of(TWO) is None
        assert before == pack_of(pair.target).read_bytes(), "who reads there must not be surprised"
        start = place_of(pair.target, 1).offset + PAGE_BYTES
        [kept] = (pair.path / "b").glob("hdds/*/quarantine/*.bytes")
        assert before[start : start + 4_000] == kept.read_bytes()
        assert {} == problems(pair)

    def test_the_pack_is_lost(self, pair: Pair) -> None:
        """
        All of its blocks are missing, and no other; each is fetched once.
        """
        pack_of(pair.target).unlink()
        missing = [(block_id, DamageFault.BLOCK_FILE_MISSING) for block_id in SIZES]
        assert missing == findings(pair.target)
        assert "BLOCK_FILE_MISSING" in problems(pair)

        assert len(SIZES) == mended(pair)

        assert not pack_of(pair.target).exists()
        assert {} == problems(pair)

    def test_the_pack_is_cut(self, pair: Pair) -> None:
        """
        Blocks behind the cut are short; those before it are untouched.
        """
        place = place_of(pair.target, 30)
        os.truncate(pack_of(pair.target), place.offset + 10)
        found = findings(pair.target)
        missing = [(block_id, DamageFault.CHUNK_MISSING) for block_id in (*range(31, 40), 60)]
        assert [(30, DamageFault.CHUNK_SHORT), *missing] == found
        assert {"BLOCK_FILE_SHORT", "CHUNK_CHECKSUM", "PACK_TABLE_DAMAGED"} == set(problems(pair))

        assert 11 == mended(pair)

    def test_a_packed_row_is_damaged(self, pair: Pair) -> None:
        """The block counts as missing, and is fetched into a file of its own."""
        with packed_rows(pair) as transaction:
            transaction.put(row_key(2), b"rubbish")
        assert {"PACKED_ROW_DAMAGED", "BLOCK_FILE_MISSING"} == set(problems(pair))
        assert [(2, DamageFault.BLOCK_FILE_MISSING)] == findings(pair.target)

        assert 1 == mended(pair)

    def test_a_packed_row_leads_elsewhere(self, pair: Pair) -> None:
        """
        fsck sees by the table that it lies; a scan sees that the bytes are not the block's.
        """
        with packed_rows(pair) as transaction:
            transaction.put(row_key(2), transaction.get(row_key(6)))
        assert PACK_NAME == problems(pair)["PACKED_ROW_DIFFERS"]
        found = [(2, DamageFault.CHUNK_CHECKSUM), (2, DamageFault.TRAILING_BYTES)]
        assert found == findings(pair.target)

        assert 1 == mended(pair)

        assert {} == problems(pair)

    def test_a_packed_row_says_less(self, pair: Pair) -> None:
        """
        Nothing behind its end is taken for the block's.
        """
        short = PackedBlocks(
            np.array([2], np.uint64), np.array([1], np.uint32), np.array([100], np.uint32)
        )
        assert place_of(pair.target, 2).offset == short.of(TWO).offset
        with packed_rows(pair) as transaction:
            [(_, row)] = encode_packed(short)
            transaction.put(row_key(2), row)

        assert [(2, DamageFault.CHUNK_SHORT)] == findings(pair.target)

    def test_a_block_s_row_is_lost(self, pair: Pair) -> None:
        """
        Its bytes are in the pack all the same: none is fetched.
        """
        lose_row(pair, 2)
        assert [(2, DamageFault.BLOCK_ROW_MISSING)] == findings(pair.target)
        assert {"BLOCK_ROW_MISSING": "2.block"} == problems(pair)

        assert 0 == mended(pair)

        assert pair.target.replica.store.pack(CONTAINER).of(TWO) is not None

    def test_packed_block_without_a_row_is_moved_to_quarantine(self, pair: Pair) -> None:
        """The block goes to quarantine as a file would."""
        whole = contents(pair.source)[2]
        lose_row(pair, 2)

        assert 4_000 == pair.target.replica.store.repair(CONTAINER).trim(TWO)

        [kept] = (pair.path / "b").glob("hdds/*/quarantine/*.bytes")
        assert whole == kept.read_bytes()
        assert pair.target.replica.store.pack(CONTAINER).of(TWO) is None
        assert not pair.target.replica.file(2).exists()

    def test_the_table_is_damaged(self, pair: Pair) -> None:
        """No block needs the table, and fsck reports it."""
        size = pack_of(pair.target).stat().st_size
        with pack_of(pair.target).open("r+b") as file:
            file.seek(size - FOOTER_BYTES)
            file.write(b"X")

        assert {"PACK_TABLE_DAMAGED": PACK_NAME} == problems(pair)
        assert [] == findings(pair.target)

    def test_a_pipe_in_its_place_is_no_pack(self, pair: Pair) -> None:
        """
        Nothing waits for its other end.
        """
        pack_of(pair.target).unlink()
        os.mkfifo(pack_of(pair.target))

        assert len(SIZES) == sum(
            fault is DamageFault.BLOCK_FILE_MISSING for _, fault in findings(pair.target)
        )

    def test_bytes_that_cannot_be_read_are_not_made_up(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        A block's own file ends before them: zeros could pass for data.
        """
        place = place_of(pair.target, 5)
        whole = contents(pair.source)[5]
        real = blockfile.read_past_cache

        def broken(path: Path, offset: int, length_bytes: int) -> bytes:
            if path.name == PACK_NAME and offset == place.offset + 3 * PAGE_BYTES:
                raise OSError(errno.EIO, "no such sector")
            return real(path, offset, length_bytes)

        monkeypatch.setattr(blockfile, "read_past_cache", broken)
        store = pair.target.replica.store
        unpack(store.volume_set.places[CONTAINER], CONTAINER, BlockId(5))

        assert whole[: 3 * PAGE_BYTES] == pair.target.replica.file(5).read_bytes()

    @pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL])
    def test_blocks_of_a_pack_are_read_one_by_one_if_large_reads_fail(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        """One bad sector must not affect the blocks beside it, and some file systems refuse
        direct reads.
        """
        refused = break_reads(monkeypatch, number, lambda _, size: size > 2 * PACKED_BYTES_MAX)

        assert [] == findings(pair.target)
        assert [0] == refused, "a bad sector takes its time to say so, each time"

    def test_bad_sector_in_a_pack_is_reported_for_one_block(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The blocks before and behind it are whole."""
        place = place_of(pair.target, 20)
        break_reads(
            monkeypatch, errno.EIO, lambda offset, size: offset <= place.offset < offset + size
        )

        assert [(20, DamageFault.CHUNK_UNREADABLE)] == findings(pair.target)


class TestLostIndex:
    """The table in the pack is what an index that was lost can begin with."""

    def lose(self, pair: Pair) -> None:
        """Lose every row of the replica, and start the target again."""
        store = pair.target.replica.store
        store.volume_set.places[CONTAINER].index.write(
            lambda rows: rows.delete_container(CONTAINER)
        )
        pair.target.replica.close()
        pair.target.replica.reopen()

    def test_no_byte_is_fetched_that_lies_in_the_pack(self, pair: Pair) -> None:
        """
        A peer's rows are all that is missing.
        """
        self.lose(pair)
        facts = pair.target.replica.store.replica(CONTAINER)
        assert (ReplicaState.UNHEALTHY, 0) == (facts.state, facts.block_count)
        pair.target.scan()

        assert 0 == mended(pair, ReplicaState.QUASI_CLOSED)

        assert {PACK_NAME, *OWN_FILES} == set(pair.target.files())
        assert {} == problems(pair)

    def test_without_a_tree_each_block_is_told_that_has_no_row(self, pair: Pair) -> None:
        """Only the pack's table shows that they existed."""
        self.lose(pair)
        pair.target.replica.store.paths(CONTAINER).tree.unlink()

        found = findings(pair.target)

        assert {(block_id, DamageFault.BLOCK_ROW_MISSING) for block_id in SIZES} <= set(found)

    def test_blocks_that_left_a_pack_do_not_return_with_a_lost_index(self, pair: Pair) -> None:
        """A deleted block stays deleted, and a repaired one is read from its own file."""
        damage(pair.target, 2)
        pair.target.scan()
        assert 1 == mended(pair)
        for end in (pair.source, pair.target):
            remove_blocks(end.replica.store, CONTAINER, [BlockId(7)])
        self.lose(pair)

        blocks = pair.target.replica.store.pack(CONTAINER).blocks()

        assert sorted(set(SIZES) - {2, 7}) == blocks.block_ids.tolist()
        pair.target.scan()
        assert 0 == mended(pair, ReplicaState.QUASI_CLOSED)

    def test_a_damaged_table_recalls_nothing(self, pair: Pair) -> None:
        """No part of it is used, and the peer's bytes are fetched."""
        os.truncate(pack_of(pair.target), pack_of(pair.target).stat().st_size - 1)
        self.lose(pair)

        assert PackedBlocks.none().block_ids.tolist() == (
            pair.target.replica.store.pack(CONTAINER).blocks().block_ids.tolist()
        )
        pair.target.scan()
        assert len(SIZES) == mended(pair, ReplicaState.QUASI_CLOSED)
