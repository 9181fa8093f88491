"""Small blocks that share a file: as good as in files of their own, whatever happens to them."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest

from agent.errors import SutureError
from agent.plan.outcome import Result
from agent.store import arrival, blockfile, readqueue
from agent.store.fsck import fsck
from agent.store.index import Change, Index
from agent.store.layout import PACK_NAME
from agent.store.packformat import FOOTER_BYTES, PAGE_BYTES, Packed, PackedBlocks
from agent.store.packs import Place, unpack
from merkle.replica import BlockId, ReplicaState
from scanner.finding import Fault
from tests.support.datanodes import Datanode, code_of
from tests.support.page_cache import cached_pages
from tests.support.pushed import MIB, Pair, serving_pair
from tests.support.stored_replica import CLUSTER, CONTAINER, MAP_BYTES

SIZES = {1: 1, 2: 4_000, 4: PAGE_BYTES, 5: 65_536, 6: PAGE_BYTES + 1}
SIZES |= dict.fromkeys((*range(7, 40), 60), 5_000)
ODD = {
    3: (70_000,),
    50: (65_537,),
    51: (100, 200),
    52: (3 * MIB,),
    53: (),
}  # neither small nor alone
OWN_FILES = {f"{block_id}.block" for block_id, sizes in ODD.items() if sizes}
TWO = BlockId(2)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two datanodes; the target has packed what the source sent it."""
    with serving_pair(tmp_path, packed_count_min=5) as made:
        replica = made.source.replica
        replica.store.create_container(CONTAINER)
        for block_id, size in SIZES.items():
            replica.put(block_id, size)
        for block_id, sizes in ODD.items():
            replica.put(block_id, *sizes)
        replica.store.close_container(CONTAINER, bcsid=0, force=True)
        made.source.scan()
        assert "imported" == made.source.replicate(made.target).result
        yield made


def pack_of(datanode: Datanode) -> Path:
    """Return the pack of the replica."""
    return datanode.replica.store.paths(CONTAINER).pack


def place_of(datanode: Datanode, block_id: int) -> Packed:
    """Return where a block lies in the pack."""
    place = datanode.replica.store.pack(CONTAINER).of(BlockId(block_id))
    assert place is not None, "it is not in the pack"
    return place


def contents(datanode: Datanode) -> dict[int, bytes]:
    """Return the bytes of every block, as clients read them."""
    store = datanode.replica.store
    return {
        block.block_id: b"".join(
            store.read(CONTAINER, block.block_id, chunk.offset, chunk.length_bytes)
            for chunk in block.chunks
        )
        for block in store.blocks(CONTAINER)
    }


def damage(datanode: Datanode, block_id: int, new: bytes = b"!") -> None:
    """Overwrite the first bytes of a packed block behind the store's back."""
    fd = os.open(pack_of(datanode), os.O_RDWR)
    try:
        os.pwrite(fd, new, place_of(datanode, block_id).offset)
    finally:
        os.close(fd)


def findings(datanode: Datanode) -> list[tuple[int, Fault]]:
    """Scan, and return what was found."""
    datanode.scan()
    return [(one.block_id, one.fault) for one in datanode.replica.store.findings(CONTAINER)]


def mended(pair: Pair, state: ReplicaState = ReplicaState.CLOSED) -> int:
    """Reconcile the target with the source; return how many chunks it fetched for that."""
    before = len(pair.source.reads)
    result = pair.target.reconcile([pair.source])
    assert Result.CONVERGED is result.result, result
    assert [] == findings(pair.target)
    assert state is pair.target.replica.store.replica(CONTAINER).state
    assert contents(pair.source) == contents(pair.target)
    return len(pair.source.reads) - before


def problems(pair: Pair) -> dict[str, str]:
    """Stop the target, return what fsck finds there, and start it again."""
    pair.target.replica.close()
    found = fsck(pair.path / "b", read_data=True).problems
    pair.target.replica.reopen()
    return {problem.kind: Path(problem.path).name for problem in found}


@contextmanager
def packed_rows(pair: Pair) -> Iterator["lmdb.Transaction[bytes]"]:
    """Change packed rows of the target as another process would, with the store closed."""
    pair.target.replica.close()
    path = pair.path / "b" / "hdds" / CLUSTER / "db"
    with lmdb.open(str(path), max_dbs=16, map_size=MAP_BYTES) as environment:
        packed = environment.open_db(b"packed", create=False)
        with environment.begin(db=packed, write=True) as transaction:
            yield transaction
    pair.target.replica.reopen()


def lose_row(pair: Pair, block_id: int) -> None:
    """Remove a block's row at the target."""
    index = pair.target.replica.store._places[CONTAINER].index
    index.write(lambda rows: rows.delete_block(CONTAINER, BlockId(block_id)))


def row_key(block_id: int) -> bytes:
    """Return the key of a packed row."""
    return CONTAINER.to_bytes(8) + block_id.to_bytes(8)


def note_commits(monkeypatch: pytest.MonkeyPatch, events: list[str]) -> None:
    """Note when an index is written to."""
    real = Index.write

    def write(index: Index, change: Callable[[Change], object]) -> object:
        events.append("commit")
        return real(index, change)

    monkeypatch.setattr(Index, "write", write)


class TestArrival:
    """What is packed, and what can be seen of it."""

    def test_small_blocks_share_a_file_and_others_have_their_own(self, pair: Pair) -> None:
        """
        Rows, bytes, root and facts are the source's; scan and fsck find nothing.
        """
        assert {PACK_NAME, *OWN_FILES} == set(pair.target.files())
        assert (
            sorted(SIZES) == pair.target.replica.store.pack(CONTAINER).blocks().block_ids.tolist()
        )
        assert contents(pair.source) == contents(pair.target)
        stores = [one.replica.store for one in (pair.source, pair.target)]
        assert stores[0].tree(CONTAINER).root == stores[1].tree(CONTAINER).root
        assert stores[0].replica(CONTAINER).bytes_used == stores[1].replica(CONTAINER).bytes_used
        assert [] == findings(pair.target)
        assert {} == problems(pair)

    def test_few_small_blocks_have_files(self, tmp_path: Path) -> None:
        """
        As clients' writes do: a second way is not worth it for them.
        """
        with serving_pair(tmp_path, packed_count_min=4) as few:
            few.source.replica.store.create_container(CONTAINER)
            for block_id in (1, 2, 3):
                few.source.replica.put(block_id, 100)
            few.source.replica.store.close_container(CONTAINER, bcsid=0, force=True)

            few.source.replicate(few.target)

            assert few.source.files() == few.target.files()

    def test_nothing_of_it_stays_in_the_page_cache(self, pair: Pair) -> None:
        """
        It belongs to the clients, here as well.
        """
        assert 0 == cached_pages(pack_of(pair.target))
        pair.target.scan()
        assert 0 == cached_pages(pack_of(pair.target))

    @pytest.mark.parametrize("way", ["queues", "threads", "compressed"])
    def test_a_packed_replica_is_sent_on(
        self, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
    ) -> None:
        """
        Whichever way it is read, the next datanode has the same blocks.
        """
        if way == "threads":
            monkeypatch.setattr(readqueue, "NUMBERS", {})
        third = Datanode("dn-c", tmp_path / "c", packed_count_min=5)
        third.serve()

        outcome = pair.target.replicate(third, compress=way == "compressed")

        assert ("imported", 0) == (outcome.result, outcome.damaged_chunk_count)
        assert contents(pair.source) == contents(third)
        assert pack_of(pair.target).read_bytes() == pack_of(third).read_bytes()
        third.close()

    def test_a_damaged_block_arrives_in_a_file_of_its_own(self, pair: Pair, tmp_path: Path) -> None:
        """
        A replica with known damage may be the best copy; what is whole of it is packed.
        """
        damage(pair.target, 2)
        assert [(2, Fault.CHUNK_CHECKSUM)] == findings(pair.target)
        third = Datanode("dn-c", tmp_path / "c", packed_count_min=5)
        third.serve()

        outcome = pair.target.replicate(third)

        assert ("imported", 1) == (outcome.result, outcome.damaged_chunk_count)
        assert third.replica.file(2).exists()
        assert third.replica.store.pack(CONTAINER).of(TWO) is None
        assert [(2, Fault.CHUNK_CHECKSUM)] == findings(third)
        third.close()

    def test_damage_that_nobody_knew_of_is_not_sent_on(self, pair: Pair, tmp_path: Path) -> None:
        """
        The target refuses it, and nothing of it is left there.
        """
        damage(pair.target, 2)
        third = Datanode("dn-c", tmp_path / "c")
        third.serve()

        assert "CHECKSUM_MISMATCH" == code_of(lambda: pair.target.replicate(third))

        Pair(pair.target, third, tmp_path).target_is_untouched()
        third.close()


class TestDurability:
    """What is recorded is on the medium before."""

    def test_a_pack_is_durable_before_its_rows(
        self, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        A small one is synced with the file system, as small files are.
        """
        events: list[str] = []
        third = Datanode("dn-c", tmp_path / "c", packed_count_min=5)
        third.serve()
        real_sync = arrival.sync_file_system

        def sync(fd: int) -> None:
            real_sync(fd)
            events.append("synced")

        monkeypatch.setattr(arrival, "sync_file_system", sync)
        note_commits(monkeypatch, events)
        pair.source.replica.store.delete_blocks(CONTAINER, map(BlockId, ODD))
        events.clear()

        pair.source.replicate(third)

        assert {PACK_NAME} == set(third.files())
        assert ["synced", "commit"] == events[:2]
        third.close()

    def test_an_own_file_is_durable_before_the_block_leaves_the_pack(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        Its bytes, then its name, then the row.
        """
        store = pair.target.replica.store
        events: list[str] = []
        real_sync = os.fsync

        def sync(fd: int) -> None:
            real_sync(fd)
            events.append(Path(f"/proc/self/fd/{fd}").resolve().name)

        monkeypatch.setattr(os, "fsync", sync)
        note_commits(monkeypatch, events)

        unpack(store._places[CONTAINER], CONTAINER, TWO)

        assert ["2.block", "chunks", "commit"] == events


class TestDamage:
    """Every damage is found where it is, and repaired."""

    def test_one_block_is_damaged(self, pair: Pair) -> None:
        """
        It gets a file of its own with the peer's bytes; the old ones go to quarantine.
        """
        damage(pair.target, 2)
        before = pack_of(pair.target).read_bytes()
        assert [(2, Fault.CHUNK_CHECKSUM)] == findings(pair.target)

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
        missing = [(block_id, Fault.BLOCK_FILE_MISSING) for block_id in SIZES]
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
        missing = [(block_id, Fault.CHUNK_MISSING) for block_id in (*range(31, 40), 60)]
        assert [(30, Fault.CHUNK_SHORT), *missing] == found
        assert {"BLOCK_FILE_SHORT", "CHUNK_CHECKSUM", "PACK_TABLE_DAMAGED"} == set(problems(pair))

        assert 11 == mended(pair)

    def test_a_packed_row_is_damaged(self, pair: Pair) -> None:
        """
        It is no row: the block counts as missing, and is fetched into a file of its own.
        """
        with packed_rows(pair) as transaction:
            transaction.put(row_key(2), b"rubbish")
        assert {"PACKED_ROW_DAMAGED", "BLOCK_FILE_MISSING"} == set(problems(pair))
        assert [(2, Fault.BLOCK_FILE_MISSING)] == findings(pair.target)

        assert 1 == mended(pair)

    def test_a_packed_row_leads_elsewhere(self, pair: Pair) -> None:
        """
        fsck sees by the table that it lies; a scan sees that the bytes are not the block's.
        """
        with packed_rows(pair) as transaction:
            transaction.put(row_key(2), transaction.get(row_key(6)))
        assert PACK_NAME == problems(pair)["PACKED_ROW_DIFFERS"]
        found = [(2, Fault.CHUNK_CHECKSUM), (2, Fault.TRAILING_BYTES)]
        assert found == findings(pair.target)

        assert 1 == mended(pair)

        assert {} == problems(pair)

    def test_a_block_s_row_is_lost(self, pair: Pair) -> None:
        """
        Its bytes are in the pack all the same: none is fetched.
        """
        lose_row(pair, 2)
        assert [(2, Fault.BLOCK_ROW_MISSING)] == findings(pair.target)
        assert {"BLOCK_ROW_MISSING": "2.block"} == problems(pair)

        assert 0 == mended(pair)

        assert pair.target.replica.store.pack(CONTAINER).of(TWO) is not None

    def test_what_no_row_describes_is_taken_out_whole(self, pair: Pair) -> None:
        """
        It goes to quarantine, as a file would.
        """
        whole = contents(pair.source)[2]
        lose_row(pair, 2)

        assert 4_000 == pair.target.replica.store.repair(CONTAINER).trim(TWO)

        [kept] = (pair.path / "b").glob("hdds/*/quarantine/*.bytes")
        assert whole == kept.read_bytes()
        assert pair.target.replica.store.pack(CONTAINER).of(TWO) is None
        assert not pair.target.replica.file(2).exists()

    def test_the_table_is_damaged(self, pair: Pair) -> None:
        """
        No block needs it; fsck tells.
        """
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
            fault is Fault.BLOCK_FILE_MISSING for _, fault in findings(pair.target)
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
        unpack(store._places[CONTAINER], CONTAINER, BlockId(5))

        assert whole[: 3 * PAGE_BYTES] == pair.target.replica.file(5).read_bytes()


class TestDelete:
    """Blocks leave, and give their room back."""

    def test_a_deleted_block_gives_its_pages_back(self, pair: Pair) -> None:
        """
        The others stay where they are; the pack is as long as it was.
        """
        before = pack_of(pair.target).stat()

        pair.target.replica.store.delete_blocks(CONTAINER, [BlockId(5), BlockId(7)])

        after = pack_of(pair.target).stat()
        assert before.st_size == after.st_size
        assert 65_536 + 2 * PAGE_BYTES == 512 * (before.st_blocks - after.st_blocks)
        left = {key: data for key, data in contents(pair.source).items() if key not in (5, 7)}
        assert left == contents(pair.target)
        assert [] == findings(pair.target)
        assert {} == problems(pair)

    @pytest.mark.parametrize("unpacked", [False, True])
    def test_the_last_block_takes_the_pack_with_it(self, pair: Pair, *, unpacked: bool) -> None:
        """
        The container is empty then and can be deleted, also if the last ones had left it before.
        """
        store = pair.target.replica.store
        last = [BlockId(38), BlockId(39)]
        store.delete_blocks(CONTAINER, [BlockId(key) for key in SIZES if key not in last])
        assert pack_of(pair.target).exists()
        if unpacked:
            for block_id in last:
                unpack(store._places[CONTAINER], CONTAINER, block_id)
            assert pack_of(pair.target).exists()

        store.delete_blocks(CONTAINER, [*last, *map(BlockId, ODD)])

        assert {} == pair.target.files()
        assert {} == problems(pair)
        pair.target.replica.store.delete_container(CONTAINER)

    def test_a_pack_whose_table_cannot_be_read_is_not_thrown_away(self, pair: Pair) -> None:
        """
        Without rows and without a table nobody knows what it holds.
        """
        with packed_rows(pair) as transaction:
            for block_id in SIZES:
                transaction.delete(row_key(block_id))
        os.truncate(pack_of(pair.target), place_bytes := 10 * PAGE_BYTES)

        pair.target.replica.store.delete_blocks(CONTAINER, [BlockId(51)])

        assert place_bytes == pack_of(pair.target).stat().st_size

    @pytest.mark.parametrize("what", ["deleted", "unpacked"])
    def test_who_reads_a_block_while_it_leaves_gets_no_zeros(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        """
        Its pages may have been given back between the look-up and the read.
        """
        store, whole = pair.target.replica.store, contents(pair.source)[2]
        real = Place.read

        def late(place: Place, offset: int, length_bytes: int) -> bytes:
            monkeypatch.setattr(Place, "read", real)
            if what == "deleted":
                store.delete_blocks(CONTAINER, [TWO])
            else:
                unpack(store._places[CONTAINER], CONTAINER, TWO)
                with pack_of(pair.target).open("r+b") as file:
                    file.write(bytes(100_000))
            return place.read(offset, length_bytes)

        monkeypatch.setattr(Place, "read", late)

        if what == "unpacked":
            assert whole == store.read(CONTAINER, TWO, 0, 4_000)
        else:
            with pytest.raises(SutureError, match="0 of 4000 bytes"):
                store.read(CONTAINER, TWO, 0, 4_000)


class TestLostIndex:
    """The table in the pack is what an index that was lost can begin with."""

    def lose(self, pair: Pair) -> None:
        """Lose every row of the replica, and start the target again."""
        store = pair.target.replica.store
        store._places[CONTAINER].index.write(lambda rows: rows.delete_container(CONTAINER))
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

    def test_what_has_left_the_pack_does_not_come_back(self, pair: Pair) -> None:
        """
        A deleted block stays deleted, and a repaired one is read from its own file.
        """
        damage(pair.target, 2)
        pair.target.scan()
        assert 1 == mended(pair)
        for end in (pair.source, pair.target):
            end.replica.store.delete_blocks(CONTAINER, [BlockId(7)])
        self.lose(pair)

        blocks = pair.target.replica.store.pack(CONTAINER).blocks()

        assert sorted(set(SIZES) - {2, 7}) == blocks.block_ids.tolist()
        pair.target.scan()
        assert 0 == mended(pair, ReplicaState.QUASI_CLOSED)

    def test_a_damaged_table_recalls_nothing(self, pair: Pair) -> None:
        """
        What it says is not believed in part; the peer's bytes come instead.
        """
        os.truncate(pack_of(pair.target), pack_of(pair.target).stat().st_size - 1)
        self.lose(pair)

        assert PackedBlocks.none().block_ids.tolist() == (
            pair.target.replica.store.pack(CONTAINER).blocks().block_ids.tolist()
        )
        pair.target.scan()
        assert len(SIZES) == mended(pair, ReplicaState.QUASI_CLOSED)
