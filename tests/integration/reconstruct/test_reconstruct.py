"""Reconstruction between real datanodes: lost shards come back byte for byte, or nothing does."""

import threading
from pathlib import Path

import pytest

from agent.reconstruct import coordinator
from agent.scan.throttle import ScanPace
from merkle.replica import ReplicaState
from scanner.scan_rate_control import PaceLimits
from suture.ec.scheme import CodecName, Scheme
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from tests.support.clock import FakeClock
from tests.support.storage.datanodes import CountingReads
from tests.support.storage.ec_cluster import (
    CONTAINER,
    SLOW_S,
    altered,
    ec_cluster,
    flip,
    groups_of,
    wrong_shard,
)
from tests.support.storage.ec_groups import SMALL_SCHEMES, lengths_bytes

RS_3_2 = Scheme(CodecName.RS, 3, 2, 4096)
LENGTHS = (1, 4096, 5000, 3 * 4096, 100_000)


class TestLostShards:
    @pytest.mark.parametrize("lost", [(1,), (3,), (5,), (1, 2), (2, 4), (4, 5)], ids=str)
    def test_come_back_as_they_were(self, lost: tuple[int, ...], tmp_path: Path) -> None:
        """
        Data and parity shards of full and partial stripes: bytes, rows and root are the writer's.
        """
        with ec_cluster(tmp_path, RS_3_2, LENGTHS, spare=2) as cluster:
            cluster.serve()

            result = cluster.reconstruct(cluster.order(lost))

            for node, index in zip((6, 7), lost, strict=False):
                cluster.assert_shard(node, index)
                assert [CONTAINER] == cluster.nodes[node].scans_asked
            assert len(LENGTHS) == result.block_count
            assert {} == result.orphans == result.replaced

    @pytest.mark.parametrize("scheme", SMALL_SCHEMES[1:], ids=str)
    def test_lost_shards_of_wider_schemes_are_rebuilt(self, scheme: Scheme, tmp_path: Path) -> None:
        """The number of lost shards equals the number of parity shards; the first and the last
        are among them.
        """
        lost = [1, *range(scheme.shard_count - scheme.parity_count + 2, scheme.shard_count + 1)]
        lengths = list(lengths_bytes(scheme).values())
        with ec_cluster(tmp_path, scheme, lengths, spare=scheme.parity_count) as cluster:
            cluster.serve()

            cluster.reconstruct(cluster.order(lost))

            for node, index in enumerate(lost, start=scheme.shard_count + 1):
                cluster.assert_shard(node, index)

    def test_many_small_blocks_are_written_in_few_commits(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A commit for each of a million blocks takes hours, and a run that misses its deadline
        starts again at the first. The blocks include empty ones.
        """
        writes: list[int] = []
        lengths = [5_000, 0, 13_000] * 120
        with ec_cluster(tmp_path, RS_3_2, lengths, spare=2) as cluster:
            for node in (6, 7):
                monkeypatch.setattr(cluster.nodes[node].recoveries, "record_write", writes.append)
            cluster.serve()

            result = cluster.reconstruct(cluster.order([2, 5]))

            assert (len(lengths), {}) == (result.block_count, result.replaced)
            assert 2 * 2 == len(writes)
            for node, index in ((6, 2), (7, 5)):
                cluster.assert_shard(node, index)

    @pytest.mark.parametrize("lost", [(1,), (3, 5)], ids=str)
    def test_large_blocks_are_written_cell_by_cell(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: tuple[int, ...]
    ) -> None:
        """Only a few stripes are held in memory. A shard without a cell of a group has the
        block, too.
        """
        monkeypatch.setattr(coordinator, "SMALL_BYTES_MAX", 0)
        with ec_cluster(tmp_path, RS_3_2, (*LENGTHS, 0), spare=2) as cluster:
            cluster.serve()

            cluster.reconstruct(cluster.order(lost))

            for node, index in zip((6, 7), lost, strict=False):
                cluster.assert_shard(node, index)

    def test_cost_no_more_bytes_than_the_data_shards_have(self, tmp_path: Path) -> None:
        """For full stripes, exactly as many bytes are read as the group has data."""
        length_bytes = 20 * RS_3_2.stripe_bytes
        with ec_cluster(tmp_path, RS_3_2, [length_bytes]) as cluster:
            cluster.serve()

            result = cluster.reconstruct(cluster.order([2]))

            assert length_bytes == result.read_bytes
            assert length_bytes // 3 == result.written_bytes

    def test_are_rebuilt_no_faster_than_is_allowed(self, tmp_path: Path) -> None:
        """
        At a fixed rate every byte read is waited for: none at the end at once, none before.
        """
        clock = FakeClock()
        began_s = clock.monotonic_s()

        def wait(seconds: float) -> bool:
            clock.advance_s(seconds)
            return False

        limits = PaceLimits(fixed_bytes_per_s=RS_3_2.stripe_bytes)
        with ec_cluster(tmp_path, RS_3_2, [20 * RS_3_2.stripe_bytes]) as cluster:
            cluster.serve()

            result = cluster.reconstruct(
                cluster.order([2]), pace=ScanPace(limits, wait, clock=clock)
            )

        assert 20 * RS_3_2.stripe_bytes == result.read_bytes
        assert 20 == pytest.approx(clock.monotonic_s() - began_s, rel=0.1)

    def test_come_back_without_stripe_checksums(self, tmp_path: Path) -> None:
        """
        Groups whose writer recorded none, as other writers do, are rebuilt all the same.
        """
        with ec_cluster(tmp_path, RS_3_2, LENGTHS, recorded=False) as cluster:
            cluster.serve()

            cluster.reconstruct(cluster.order([1]))

            cluster_root = cluster.nodes[1].store.view(CONTAINER).tree().root
            assert cluster_root == cluster.nodes[6].store.view(CONTAINER).tree().root

    def test_shards_of_an_empty_container_are_rebuilt_empty(self, tmp_path: Path) -> None:
        """An empty container has empty shards."""
        with ec_cluster(tmp_path, RS_3_2, []) as cluster:
            cluster.serve()

            result = cluster.reconstruct(cluster.order([4]))

            assert 0 == result.block_count
            assert ReplicaState.CLOSED is cluster.nodes[6].store.replica(CONTAINER).state


class TestBadSources:
    def test_a_corrupt_cell_is_read_from_another(self, tmp_path: Path) -> None:
        """A source has a flipped bit. Its shard is skipped for that stripe and reported."""
        with ec_cluster(tmp_path, RS_3_2, [50_000]) as cluster:
            flip(cluster.nodes[2], 1, 100)
            cluster.serve()

            result = cluster.reconstruct(cluster.order([1]))

            cluster.assert_shard(6, 1)
            assert ["dn-2"] == list(result.replaced)

    def test_a_source_that_is_down_is_replaced(self, tmp_path: Path) -> None:
        """
        A datanode that does not answer costs nothing but its turn.
        """
        with ec_cluster(tmp_path, RS_3_2, LENGTHS) as cluster:
            cluster.serve()
            order = cluster.order([1])
            cluster.nodes[3].stop_serving()

            result = cluster.reconstruct(order)

            cluster.assert_shard(6, 1)
            assert ["dn-3"] == list(result.replaced)

    def test_a_slow_source_is_not_waited_for(self, tmp_path: Path) -> None:
        """
        While one source keeps its answer back, another is asked, and the run ends without it.
        """
        release = threading.Event()

        class SlowService(CountingReads):
            def ReadChunk(self, request):  # type: ignore[no-untyped-def]
                release.wait(30.0)
                yield from super().ReadChunk(request)

        with ec_cluster(tmp_path, RS_3_2, [50_000]) as cluster:
            cluster.serve(dn2=SlowService)
            try:
                result = cluster.reconstruct(cluster.order([1]), slow_s=SLOW_S)
            finally:
                release.set()

            cluster.assert_shard(6, 1)
            assert "slow" in result.replaced["dn-2"]

    def test_a_shard_of_another_stripe_is_found_by_the_record(self, tmp_path: Path) -> None:
        """The bytes are wrong and fit their checksums. The writer's stripe checksum detects it,
        the other shards locate it, and the rebuilt shard is correct.
        """
        with ec_cluster(tmp_path, RS_3_2, [50_000], instead=wrong_shard(RS_3_2)) as cluster:
            cluster.serve()

            result = cluster.reconstruct(cluster.order([1]))

            cluster.assert_shard(6, 1)
            assert "the cell is wrong" in result.replaced["dn-3"]

    def test_wrong_bytes_that_nothing_can_name_are_not_built_upon(self, tmp_path: Path) -> None:
        """If the record does not fit and no further shard is available, nothing is committed."""
        with ec_cluster(
            tmp_path, RS_3_2, [50_000], spare=2, instead=wrong_shard(RS_3_2)
        ) as cluster:
            cluster.serve()

            with pytest.raises(
                RefusedError, match="the wrong shard cannot be identified"
            ) as caught:
                cluster.reconstruct(cluster.order([1, 2]))

            assert Code.CHECKSUM_MISMATCH is caught.value.code
            assert [] == cluster.nodes[6].store.replica_ids()
            assert [] == cluster.nodes[7].store.replica_ids()


class TestParityScrub:
    def test_a_whole_container_is_clean(self, tmp_path: Path) -> None:
        """
        Full and partial stripes of all lengths fit, and every cell was read.
        """
        with ec_cluster(tmp_path, RS_3_2, LENGTHS) as cluster:
            cluster.serve()

            report = cluster.verify_parity()

            assert report.is_clean
            assert report.read_bytes == sum(
                len(cell)
                for made in cluster.groups.values()
                for stripe in made.stripes
                for cell in stripe.values()
            )

    @pytest.mark.parametrize("recorded", [True, False])
    def test_a_wrong_shard_is_named(self, tmp_path: Path, recorded: bool) -> None:
        """
        Wrong bytes with fitting checksums are found, and the shard is named: by the writer's
        record, or by redundancy alone.
        """
        with ec_cluster(
            tmp_path, RS_3_2, [50_000], instead=wrong_shard(RS_3_2), recorded=recorded
        ) as cluster:
            cluster.serve()

            report = cluster.verify_parity()

            assert [(1, 1, (3,))] == [(f.block_id, f.stripe, f.wrong) for f in report.faults]
            assert (3,) == report.wrong

    def test_a_wrong_shard_of_a_thin_code_is_found_and_not_guessed(self, tmp_path: Path) -> None:
        """With one parity shard and no record, the fault is reported without a suspect."""
        scheme = Scheme(CodecName.XOR, 2, 1, 4096)
        made = groups_of(scheme, [20_000])[1]
        wrong = {2: {1: altered(made, 0, 2)}}
        with ec_cluster(tmp_path, scheme, [20_000], instead=wrong, recorded=False) as cluster:
            cluster.serve()

            report = cluster.verify_parity()

            assert [(1, 0, ())] == [(f.block_id, f.stripe, f.wrong) for f in report.faults]
            assert () == report.wrong

    def test_a_shard_that_lacks_a_block_is_named(self, tmp_path: Path) -> None:
        """Its index lost the row before the container was closed, so its own tree does not show
        it.
        """
        rest = groups_of(RS_3_2, LENGTHS)
        del rest[2]
        with ec_cluster(tmp_path, RS_3_2, LENGTHS, instead={3: rest}) as cluster:
            cluster.serve()

            report = cluster.verify_parity()

            assert (((2, 3),), False) == (report.missing_shards, report.is_clean)
            assert ((), ()) == (report.faults, report.absent)

    def test_a_corrupt_cell_is_told_apart_from_a_wrong_one(self, tmp_path: Path) -> None:
        """
        A cell that its own checksums condemn is the scan's to report: no stripe is called wrong.
        """
        with ec_cluster(tmp_path, RS_3_2, [50_000]) as cluster:
            flip(cluster.nodes[2], 1, 100)
            cluster.serve()

            report = cluster.verify_parity()

            assert () == report.faults
            assert ["dn-2"] == list(report.unreadable)
            assert not report.is_clean


class TestRefusals:
    def test_more_is_lost_than_parity_gives_back(self, tmp_path: Path) -> None:
        """
        With two of three needed sources nothing is begun.
        """
        with ec_cluster(tmp_path, RS_3_2, LENGTHS) as cluster:
            cluster.serve()

            with pytest.raises(RefusedError, match="needs 3 sources, the command names 2"):
                cluster.reconstruct(cluster.order([1], sources=[2, 3]))

            assert [] == cluster.nodes[6].store.replica_ids()

    def test_a_source_that_dies_on_the_way_leaves_nothing_behind(self, tmp_path: Path) -> None:
        """If too few sources remain midway, the new shard is removed and the sources stay."""

        class DyingService(CountingReads):
            def ReadChunk(self, request):  # type: ignore[no-untyped-def]
                if request.offset >= 5 * 4096:
                    self.datanode.built.server.stop(0)
                    raise UnavailableError(
                        Code.UNAVAILABLE, "what is answered now may still arrive"
                    )
                yield from super().ReadChunk(request)

        with ec_cluster(tmp_path, RS_3_2, [100_000]) as cluster:
            cluster.serve(dn2=DyingService)

            with pytest.raises(UnavailableError, match="cells can be read"):
                cluster.reconstruct(cluster.order([1], sources=[2, 3, 4]))

            assert [] == cluster.nodes[6].store.replica_ids()
            for index in (2, 3, 4):
                assert ReplicaState.CLOSED is cluster.nodes[index].store.replica(CONTAINER).state

    def test_a_target_that_has_a_replica_keeps_it(self, tmp_path: Path) -> None:
        """
        A target on which the container is there already is refused, and nothing there changes.
        """
        with ec_cluster(tmp_path, RS_3_2, LENGTHS) as cluster:
            cluster.serve()
            cluster.reconstruct(cluster.order([1]))
            before = cluster.nodes[6].files(CONTAINER)

            with pytest.raises(SutureError) as caught:
                cluster.reconstruct(cluster.order([1]))

            assert Code.CONTAINER_EXISTS is caught.value.code
            assert before == cluster.nodes[6].files(CONTAINER)
            cluster.assert_shard(6, 1)

    def test_a_stopped_run_leaves_nothing_behind(self, tmp_path: Path) -> None:
        """
        The agent's stop ends a run between two stripes, and its targets are removed.
        """
        with ec_cluster(tmp_path, RS_3_2, [100_000]) as cluster:
            cluster.serve()

            with pytest.raises(UnavailableError) as caught:
                cluster.reconstruct(cluster.order([1]), stop=lambda: True)

            assert Code.CANCELLED is caught.value.code
            assert [] == cluster.nodes[6].store.replica_ids()

    @pytest.mark.parametrize("listed_count", [5, 60])
    def test_a_run_is_stopped_while_blocks_are_listed(
        self, tmp_path: Path, listed_count: int
    ) -> None:
        """
        A million blocks are listed in minutes, first before anything is made (no target answers
        here), then to be rebuilt: a stop does not wait for one that has bytes.
        """
        asked = iter([False] * listed_count)
        with ec_cluster(tmp_path, RS_3_2, [0] * 50) as cluster:
            cluster.serve()
            order = cluster.order([4])
            if listed_count < 50:
                cluster.nodes[6].stop_serving()

            with pytest.raises(UnavailableError) as caught:
                cluster.reconstruct(order, stop=lambda: next(asked, True))

            assert Code.CANCELLED is caught.value.code
            assert [] == cluster.nodes[6].store.replica_ids()

    def test_a_source_with_another_index_is_not_read(self, tmp_path: Path) -> None:
        """A replica with another index than the order has is no source."""
        with ec_cluster(tmp_path, RS_3_2, LENGTHS) as cluster:
            cluster.serve()
            order = cluster.order([1])
            swapped = (cluster.shard(3, 2), cluster.shard(2, 3), *order.sources[2:])

            with pytest.raises(UnavailableError, match="its replica has index 3, not 2"):
                cluster.reconstruct(
                    type(order)(order.container_id, order.scheme, swapped, order.targets)
                )
