"""One datanode pushes its replica to another: whole, as it is, or not at all."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.store.files import readqueue
from agent.store.files.writebehind import LARGE_BYTES_MIN
from agent.store.operations.replica_import import ImportSpec, ReplicaImport
from agent.store.recovery.fsck import fsck
from agent.transfer.parts import read_part
from merkle.checksum import Algorithm
from merkle.replica import Bcsid, BlockId, ChecksumType, ContainerId, ReplicaState
from suture.errors import RefusedError, SutureError, UnavailableError
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.faults.page_cache import cached_pages, drop_pages
from tests.support.storage.datanodes import Datanode, code_of
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.pushed import (
    Counting,
    Pair,
    decoded,
    encoded,
    exported,
    put_mixed,
)
from tests.support.storage.stored_replica import CONTAINER

MIB = 1024 * 1024


def assert_same(pair: Pair) -> None:
    """Assert that both have the same files, rows, tombstones and root; that fsck is content."""
    ours, theirs = pair.source.replica.store, pair.target.replica.store
    assert pair.source.files() == pair.target.files()
    assert list(ours.view(CONTAINER).block_rows()) == list(theirs.view(CONTAINER).block_rows())
    assert ours.view(CONTAINER).tombstones() == theirs.view(CONTAINER).tombstones()
    assert ours.view(CONTAINER).tree().root == theirs.view(CONTAINER).tree().root
    pair.target.replica.close()
    assert () == fsck(pair.path / "b", read_data=True).problems
    pair.target.replica.reopen()
    assert ReplicaState.CLOSED is pair.target.replica.store.replica(CONTAINER).state


class TestWholeReplicas:
    def test_a_replica_arrives_as_it_is(self, pair: Pair) -> None:
        """
        Files, rows, tombstones, root and facts are those of the source.
        """
        pair.source.replica.create(blocks=5)
        remove_blocks(pair.source.replica.store, CONTAINER, [BlockId(2)])

        outcome = pair.source.replicate(pair.target)

        assert ("imported", 4, 0) == (
            outcome.result,
            outcome.block_count,
            outcome.damaged_chunk_count,
        )
        assert outcome.bytes_sent == sum(map(len, pair.source.files().values()))
        assert CONTAINER == outcome.replica.container_id
        assert_same(pair)

    def test_blocks_of_every_shape_arrive(self, pair: Pair) -> None:
        """
        Large, small, empty and odd blocks of every checksum type go through the same stream.
        """
        replica = pair.source.replica
        replica.store.create_container(CONTAINER)
        replica.put(1, 3 * MIB + 17, 5)
        replica.put(2)  # committed without a chunk
        replica.put(3, 1)
        replica.put(4, MIB)
        replica.put(5, MIB + 1, 2 * MIB, 4096)
        for number, kind in enumerate(ChecksumType):
            replica.put(10 + number, 50_000, 70_000, checksum_type=kind)
        replica.put(30, 2 * MIB)
        for number in range(100, 160):
            replica.put(number, 900 + number)
        replica.store.close_container(CONTAINER, bcsid=0, force=True)

        outcome = pair.source.replicate(pair.target)

        assert "imported" == outcome.result
        assert_same(pair)

    def test_an_empty_replica_arrives(self, pair: Pair) -> None:
        """A container without data is replicated like any other."""
        pair.source.replica.create(blocks=0)

        pair.source.replicate(pair.target)

        assert_same(pair)

    def test_the_target_reports_and_scans_what_arrived(self, pair: Pair) -> None:
        """The arrival is reported at once, and a scan is requested because it was never read
        here.
        """
        pair.source.replica.create()
        changed: list[ContainerId] = []
        pair.target.replica.store.on_change = changed.append

        pair.source.replicate(pair.target)

        assert [CONTAINER] == changed
        assert [CONTAINER] == pair.target.on_demand
        assert 0 == pair.target.replica.store.replica(CONTAINER).data_scan_at_ms
        pair.target.scan()

    def test_a_copy_keeps_to_a_pace_beside_clients(self, pair: Pair) -> None:
        """
        All that goes out is accounted for, part by part, and a wait ends with the copy.
        """
        pair.source.replica.create()
        paced: list[int] = []
        stops: list[bool] = []

        def pace(length_bytes: int, is_interrupted: Callable[[], bool]) -> None:
            paced.append(length_bytes)
            stops.append(is_interrupted())

        copying = replace(pair.source.replicator(), pace=pace)
        outcome = pair.source.replicate(pair.target, replicator=copying)

        assert sum(paced) > outcome.bytes_sent > max(paced)
        assert {False} == set(stops)

    def test_a_target_folds_trees_its_own_way(self, tmp_path: Path) -> None:
        """The datanodes use different algorithms, and the target builds its own tree."""
        source = Datanode("dn-a", tmp_path / "a", algorithm=Algorithm.CRC32C)
        target = Datanode("dn-b", tmp_path / "b", algorithm=Algorithm.XXH3_64)
        source.replica.create()
        target.serve()

        source.replicate(target)

        tree = target.replica.store.view(CONTAINER).tree()
        assert Algorithm.XXH3_64 is tree.algorithm
        root = tree.root
        target.scan()
        assert root == target.replica.store.view(CONTAINER).tree().root
        source.close()
        target.close()

    def test_data_of_the_replica_does_not_stay_in_memory(self, pair: Pair) -> None:
        """
        The parts of a stream are read ahead by a few only: an unread stream reads no further.
        """
        replica = pair.source.replica
        replica.store.create_container(CONTAINER)
        for number in range(1, 21):
            replica.put(number, MIB)
        replica.store.close_container(CONTAINER, bcsid=0, force=True)
        export = exported(pair.source)
        stream = export.stream()

        parts = [pb.ImportPart.FromString(next(stream)) for _ in range(4)]

        assert "blocks" == parts[-1].WhichOneof("part")
        assert export.block_count <= 2
        stream.close()

    @pytest.mark.parametrize("size_bytes", [MIB, 300_000])
    def test_a_stream_that_is_left_early_leaves_nothing_behind(
        self, pair: Pair, size_bytes: int
    ) -> None:
        """Reads under way are awaited, because their memory must not be written to later."""
        replica = pair.source.replica
        replica.store.create_container(CONTAINER)
        for number in range(1, 20):
            replica.put(number, size_bytes)
        replica.store.close_container(CONTAINER, bcsid=0, force=True)
        before = sorted(Path("/proc/self/fd").iterdir())
        stream = exported(pair.source).stream()
        kinds = (pb.ImportPart.FromString(part).WhichOneof("part") for part in stream)
        assert "blocks" in kinds  # which takes the first of them, no more

        stream.close()

        assert before == sorted(Path("/proc/self/fd").iterdir())

    @pytest.mark.parametrize("has_queues", [True, False])
    def test_no_thread_is_taken_for_what_comes_by_itself(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch, *, has_queues: bool
    ) -> None:
        """
        Large blocks are read straight into their messages, small ones together; where the kernel
        has no queues a thread reads each part, and what arrives is the same.
        """
        replica = pair.source.replica
        replica.store.create_container(CONTAINER)
        replica.put(1, 3 * MIB)
        replica.put(2, MIB, 4096)
        replica.put(3, MIB)
        for number in range(4, 200):
            replica.put(number, 900 + number)
        replica.store.close_container(CONTAINER, bcsid=0, force=True)
        if not has_queues:
            monkeypatch.setattr(readqueue, "NUMBERS", {})
        threads = Counting(pair.source._fetchers)

        parts = list(replace(exported(pair.source), executor=threads).stream())

        assert (0 if has_queues else 7) == threads.count
        pair.target.importer.receive(map(read_part, parts))
        assert_same(pair)

    def test_a_large_block_uses_up_the_room_that_was_kept_for_it(self, pair: Pair) -> None:
        """
        Its place on the disk is its own before its bytes come: it must not count twice.
        """
        arrival = announce(pair.target, data_bytes=LARGE_BYTES_MIN)
        store = pair.target.replica.store
        kept_bytes = store.volume_set.arrivals.reserved_bytes(store.volume_set.working[0])

        arrival.begin_file(BlockId(1), LARGE_BYTES_MIN)

        left_bytes = store.volume_set.arrivals.reserved_bytes(store.volume_set.working[0])
        assert LARGE_BYTES_MIN == kept_bytes - left_bytes
        for _ in range(LARGE_BYTES_MIN // MIB):
            arrival.append(memoryview(bytes(MIB)))
        arrival.end_file()
        assert left_bytes == store.volume_set.arrivals.reserved_bytes(store.volume_set.working[0])
        arrival.discard()

    def test_small_blocks_do_not_stay_in_the_page_cache(self, pair: Pair) -> None:
        """The copy uses the page cache neither on the source nor on the target, because it
        belongs to the clients.
        """
        put_mixed(pair.source)
        for path in pair.source.replica.store.paths(CONTAINER).chunks.iterdir():
            drop_pages(path)

        pair.source.replicate(pair.target)

        for end in (pair.source, pair.target):
            chunks = end.replica.store.paths(CONTAINER).chunks
            assert {0} == set(map(cached_pages, chunks.iterdir()))


class TestRefusals:
    def test_a_replica_that_is_there_is_not_replaced(self, pair: Pair) -> None:
        """
        The second push finds the first one's replica and leaves it alone.
        """
        pair.source.replica.create()
        pair.source.replicate(pair.target)

        outcome = pair.source.replicate(pair.target)

        assert "already_there" == outcome.result
        assert CONTAINER == outcome.replica.container_id

    def test_an_open_replica_at_the_target_is_no_copy(self, pair: Pair) -> None:
        """
        A replica of that id that is not closed is refused, not called there already.
        """
        pair.source.replica.create()
        pair.target.replica.store.create_container(CONTAINER)

        assert "CONTAINER_EXISTS" == code_of(lambda: pair.source.replicate(pair.target))

    def test_an_open_replica_is_not_sent(self, pair: Pair) -> None:
        """A replica that may still change is not copied."""
        pair.source.replica.store.create_container(CONTAINER)

        code = code_of(lambda: pair.source.replicate(pair.target))

        assert "INVALID_CONTAINER_STATE" == code
        pair.target_is_untouched()

    def test_the_same_container_arrives_once_at_a_time(self, pair: Pair) -> None:
        """While a replica arrives, a second stream and a create are refused as busy."""
        store = pair.target.replica.store
        arrival = announce(pair.target, data_bytes=MIB)

        with pytest.raises(UnavailableError) as second:
            announce(pair.target, data_bytes=MIB)
        with pytest.raises(UnavailableError) as created:
            store.create_container(CONTAINER)

        assert "BUSY" == second.value.code == created.value.code
        arrival.discard()
        store.create_container(CONTAINER)

    def test_room_is_reserved_twice_over(self, pair: Pair) -> None:
        """
        A replica is refused that would fit once but not twice; what is refused keeps no room.
        """
        store = pair.target.replica.store
        free_bytes = store.volumes()[0].available_bytes

        with pytest.raises(SutureError) as refusal:
            announce(pair.target, data_bytes=int(free_bytes * 0.6))

        assert "DISK_OUT_OF_SPACE" == refusal.value.code
        assert 0 == store.volume_set.arrivals.reserved_bytes(store.volume_set.working[0])

    def test_two_arrivals_do_not_share_their_room(self, pair: Pair) -> None:
        """
        Room that one arrival has reserved is not given to the next, until the first has ended.
        """
        free_bytes = pair.target.replica.store.volumes()[0].available_bytes
        first = announce(pair.target, data_bytes=int(free_bytes * 0.3))

        with pytest.raises(UnavailableError):
            announce(pair.target, container_id=ContainerId(2), data_bytes=int(free_bytes * 0.3))

        first.discard()
        announce(
            pair.target, container_id=ContainerId(2), data_bytes=int(free_bytes * 0.3)
        ).discard()

    def test_a_stranger_s_cluster_is_refused(self, pair: Pair) -> None:
        """
        Containers have numbers of their cluster: those of another mean something else.
        """
        pair.source.replica.create()
        parts = list(decoded(pair.source))
        parts[0].header.cluster_id = "another"

        assert "WRONG_CLUSTER" == code_of(lambda: pair.target.importer.receive(encoded(parts)))

    def test_only_who_was_let_in_gets_a_thread(self, pair: Pair) -> None:
        """
        Streams that are refused, however many, take no thread from those that are received.
        """
        pair.source.replica.create()
        parts = list(decoded(pair.source))
        threads = Counting(pair.target._fetchers)
        importer = replace(pair.target.importer, executor=threads)
        arrival = announce(pair.target, data_bytes=MIB)

        assert "BUSY" == code_of(lambda: importer.receive(encoded(parts)))

        assert 0 == threads.count
        arrival.discard()
        importer.receive(encoded(parts))
        assert 1 <= threads.count

    def test_a_block_for_which_there_is_no_room_gets_none(self, pair: Pair) -> None:
        """
        A sender cannot fill the disk with a block that never comes.
        """
        arrival = announce(pair.target, data_bytes=MIB)
        with pytest.raises(RefusedError, match="times the announced"):
            arrival.begin_file(BlockId(1), LARGE_BYTES_MIN)
        store = pair.target.replica.store
        assert [] == list(store.volume_set.working[0].layout.importing.glob("*/chunks/*"))
        arrival.discard()


def announce(
    target: Datanode, *, container_id: ContainerId = CONTAINER, data_bytes: int
) -> ReplicaImport:
    """Begin an arrival at the target's store."""
    return target.replica.store.begin_arrival(
        ImportSpec(
            container_id=container_id,
            state=ReplicaState.CLOSED,
            former_state=None,
            replica_index=0,
            bcsid=Bcsid(1),
            origin_datanode_id="dn-x",
            created_at_ms=0,
            data_bytes=data_bytes,
        )
    )
