"""The index: all of a change or nothing, rows in order, damage seen, a map that grows."""

import json
from dataclasses import replace
from pathlib import Path

import lmdb
import pytest

from agent.store.index import map_resize_lock
from agent.store.index.environment import Index
from agent.store.index.map_resize_lock import MapResizeLock
from agent.store.index.rows import (
    ReplicaRow,
    UnlinkEntry,
    decode_finding,
    decode_journal,
    decode_replica,
    decode_standing,
    encode_finding,
    encode_journal,
    encode_replica,
    seal,
)
from agent.store.index.transactions import IndexView
from merkle.checksum import Algorithm
from merkle.damaged_data import DamagedData
from merkle.replica import Bcsid, BlockId, ContainerId, ReplicaState
from merkle.tree_summary import TreeSummary
from scanner.finding import Forensic
from suture.errors import Code, RefusedError, UnavailableError, VolumeFailed
from tests.support.storage.stores import chunk_of, content, damage


class Crowded:
    """An environment of which all slots for readers are taken."""

    def begin(self) -> None:
        """Find none."""
        error = lmdb.ReadersFullError("no slot")
        error.code = -30790  # MDB_READERS_FULL
        raise error


ONE, TWO, THREE = ContainerId(1), ContainerId(2), ContainerId(3)
MiB = 1024**2
FULL_ROW = ReplicaRow(
    state=ReplicaState.UNHEALTHY,
    former_state=ReplicaState.QUASI_CLOSED,
    replica_index=14,
    bcsid=Bcsid(2**63 - 1),
    used_bytes=2**62,
    block_count=500_000,
    generation=2**40,
    tree=TreeSummary(Algorithm.CRC32C, 2**64 - 1, 2**40 - 1, 499_999, 17, 2**64 - 2),
    data_scan_at_ms=2**41,
    finding_count=2**32 - 1,
    created_at_ms=2**41 + 1,
    origin_datanode_id="dn-ä",
)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """An empty index."""
    (tmp_path / "db").mkdir()
    return Index(tmp_path / "db", map_bytes=MiB)


class TestRows:
    """The binary forms."""

    @pytest.mark.parametrize("row", [FULL_ROW, ReplicaRow(state=ReplicaState.OPEN)])
    def test_a_replica_row_is_read_as_it_was_written(self, row: ReplicaRow) -> None:
        """
        Every field at its largest, and every field absent.
        """
        assert row == decode_replica(ONE, encode_replica(row))
        assert (row.replica_index, row.bcsid) == decode_standing(ONE, encode_replica(row))

    def test_a_root_of_zero_is_not_no_tree(self) -> None:
        """
        Presence is a field of its own.
        """
        zero = replace(FULL_ROW, tree=TreeSummary(Algorithm.XXH3_64, 0, 0, 0, 0, 0))

        assert decode_replica(ONE, encode_replica(zero)).tree is not None

    def test_any_flipped_bit_is_seen(self) -> None:
        """
        Rows of every kind carry their own checksum.
        """
        rows = (
            (encode_replica(FULL_ROW), lambda row: decode_replica(ONE, row)),
            (encode_replica(FULL_ROW), lambda row: decode_standing(ONE, row)),
            (encode_finding(damage()), lambda row: decode_finding(ONE, row)),
            (
                encode_journal(UnlinkEntry((BlockId(1),))),
                lambda row: decode_journal(ONE, row),
            ),
        )
        for row, decode in rows:
            for position in range(len(row)):
                flipped = bytearray(row)
                flipped[position] ^= 1 << (position % 8)
                with pytest.raises(DamagedData, match="container 1"):
                    decode(bytes(flipped))
            for length_bytes in range(len(row)):
                with pytest.raises(DamagedData):
                    decode(row[:length_bytes])


class TestTransactions:
    """Changes and snapshots."""

    def test_a_change_that_fails_changes_nothing(self, index: Index) -> None:
        """
        An exception in the middle takes back what was before it.
        """

        def fail(rows: object) -> None:
            rows.put_replica(ONE, FULL_ROW)  # type: ignore[attr-defined]
            raise RefusedError(Code.BUSY, "planted")

        with pytest.raises(RefusedError, match="planted"):
            index.write(fail)

        with index.read() as rows, pytest.raises(RefusedError, match="no container 1"):
            rows.replica(ONE)

    def test_containers_do_not_touch_each_other(self, index: Index) -> None:
        """
        Each list ends where the next container begins.
        """
        for container_id in (ONE, TWO, THREE):
            for block_id in (1, 2**63 - 1):
                index.write(
                    lambda rows, c=container_id, b=block_id: (  # type: ignore[misc]
                        rows.put_block(c, BlockId(b), b"row"),
                        rows.put_tombstone(c, BlockId(b), b),
                        rows.put_pending(c, BlockId(b), chunk_of(content(b))),
                        rows.replace_findings(c, [damage(c)]),
                        rows.begin_work(c, UnlinkEntry((BlockId(b),))),
                    )
                )
        index.write(lambda rows: rows.delete_container(TWO))

        def counts(rows: IndexView, container_id: ContainerId) -> list[int]:
            return [
                len(list(rows.blocks(container_id))),
                len(rows.tombstones(container_id)),
                len(list(rows.pending(container_id))),
                len(list(rows.findings(container_id))),
                len(list(rows.journal(container_id))),
            ]

        with index.read() as rows:
            assert [[2, 2, 2, 1, 1], [0] * 5, [2, 2, 2, 1, 1]] == [
                counts(rows, container_id) for container_id in (ONE, TWO, THREE)
            ]
            assert [ONE, THREE] == list(rows.containers_with_findings(0))
            assert [THREE] == list(rows.containers_with_findings(2))

    def test_the_last_pending_chunk_is_found_beside_other_blocks(self, index: Index) -> None:
        """The pending chunk is found before the next block and before the end of the database."""
        for block_id, offset in ((1, 0), (1, 10_000), (2, 0)):
            chunk = chunk_of(content(offset), offset)
            index.write(
                lambda rows, b=block_id, c=chunk: rows.put_pending(ONE, BlockId(b), c)  # type: ignore[misc]
            )

        with index.read() as rows:
            ends = [rows.last_pending(ONE, BlockId(block_id)) for block_id in (1, 2, 3)]

        assert [10_000, 0, None] == [chunk and chunk.offset for chunk in ends]

    def test_a_damaged_replica_row_does_not_hide_its_neighbours(self, index: Index) -> None:
        """The damaged row is returned as a fault."""
        index.write(lambda rows: rows.put_replica(ONE, FULL_ROW))
        index.write(lambda rows: rows._txn.put((2).to_bytes(8), b"rubbish", db=rows._dbs.replicas))
        index.write(lambda rows: rows.put_replica(THREE, FULL_ROW))

        with index.read() as rows:
            found = dict(rows.replicas())

        assert FULL_ROW == found[ONE] == found[THREE]
        assert isinstance(found[TWO], DamagedData)


class TestMap:
    """The memory map."""

    def test_a_full_map_grows_and_the_change_is_made(self, index: Index) -> None:
        """
        The caller does not notice.
        """
        before = index._env.info()["map_size"]

        index.write(
            lambda rows: [
                rows.put_block(ONE, BlockId(number), bytes(4000)) for number in range(1, 2000)
            ]
        )

        with index.read() as rows:
            assert 1999 == sum(1 for _ in rows.blocks(ONE))
        assert before < index._env.info()["map_size"]

    def test_index_map_does_not_grow_under_a_reader(
        self, index: Index, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A long-lived reader makes the writer give up with BUSY, and nothing is lost."""
        monkeypatch.setattr(map_resize_lock, "MAP_WAIT_S", 0.05)
        index.write(lambda rows: rows.put_block(ONE, BlockId(1), b"x"))

        with index.read() as rows:
            with pytest.raises(UnavailableError) as refusal:
                index.write(lambda change: change.put_block(ONE, BlockId(2), bytes(2 * MiB)))
            assert b"x" == rows.block(ONE, BlockId(1))

        assert Code.BUSY is refusal.value.code
        index.write(lambda change: change.put_block(ONE, BlockId(2), bytes(2 * MiB)))

    def test_the_gate_admits_nobody_while_it_is_closed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A caller waits while the map is replaced, and gives up in the end."""
        monkeypatch.setattr(map_resize_lock, "MAP_WAIT_S", 0.05)
        gate = MapResizeLock()

        with gate.closed(), pytest.raises(UnavailableError), gate.entered():
            pytest.fail("entered a closed gate")
        with gate.entered():
            pass

    def test_a_read_that_fails_says_so_in_the_store_s_words_and_leaves(
        self, index: Index, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An error of LMDB, at the beginning or within, is an error of the volume. A failed
        reader does not prevent the map from growing.
        """
        with pytest.raises(VolumeFailed), index.read() as rows:
            rows._txn.put(b"k", b"v", db=rows._dbs.blocks)  # LMDB refuses: it only reads
        with pytest.raises(KeyError), index.read():
            raise KeyError("the caller's own")
        monkeypatch.setattr(index, "_env", Crowded())
        with pytest.raises(UnavailableError) as refusal, index.read():
            pytest.fail("began without a reader's slot")
        monkeypatch.undo()

        assert Code.BUSY is refusal.value.code
        index.write(lambda change: change.put_block(ONE, BlockId(1), bytes(2 * MiB)))


def test_findings_keep_their_class_and_older_rows_have_none() -> None:
    """A row from before classes existed is read as unclassified."""
    finding = replace(damage(), forensic=Forensic.TORN_512)
    row = encode_finding(finding)
    older = seal(json.dumps(json.loads(row[:-4])[:-1]).encode())

    assert finding == decode_finding(ONE, row)
    assert replace(finding, forensic=Forensic.UNKNOWN) == decode_finding(ONE, older)
