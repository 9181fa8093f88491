"""Which blocks a reconstruction makes: all that a key names, whoever of the sources lists them."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from agent.reconstruct import coordinator
from merkle.replica import BlockId, ContainerId, ReplicaState
from suture.ec.rebuild_task import RebuildTask
from suture.ec.scheme import CodecName, Scheme
from suture.errors import Code, RefusedError, UnavailableError
from suture.wire.clients import message_groups
from tests.support.storage.datanodes import CountingReads
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.ec_cluster import (
    CONTAINER,
    EcCluster,
    ec_cluster,
    groups_of,
    write_shard,
)

RS_3_2 = Scheme(CodecName.RS, 3, 2, 4096)
LENGTHS = (1, 4096, 5000, 3 * 4096, 100_000)
DELETING = threading.Lock()


class TestOrphans:
    def test_a_block_that_too_few_sources_know_is_left_out_and_named(self, tmp_path: Path) -> None:
        """A block that a writer left unfinished on two shards is not rebuilt, and all others
        are.
        """
        rest = groups_of(RS_3_2, LENGTHS)
        del rest[2]
        lacking = dict.fromkeys((3, 4, 5), rest)
        with ec_cluster(tmp_path, RS_3_2, LENGTHS, instead=lacking) as cluster:
            cluster.serve()

            result = cluster.reconstruct(cluster.order([1]))

            assert [2] == list(result.orphans)
            assert len(LENGTHS) - 1 == result.block_count
            with pytest.raises(RefusedError):
                cluster.nodes[6].store.view(CONTAINER).block(BlockId(2))

    def test_a_block_that_a_key_names_is_not_left_out(self, tmp_path: Path) -> None:
        """
        Three of four sources lost its row: a shard without it would pass for a whole one. Nothing
        is left behind, and those that lost it find out by a scan.
        """
        with ec_cluster(tmp_path, RS_3_2, LENGTHS) as cluster:
            for index in (3, 4, 5):
                cluster.nodes[index].store.view(CONTAINER).tree()
                cluster.nodes[index].replica.delete_row(2, CONTAINER)
            cluster.serve()
            asked: list[tuple[int, list[int]]] = []
            read: list[int] = []

            def needed(
                container_id: ContainerId, block_ids: Sequence[BlockId]
            ) -> frozenset[BlockId]:
                asked.append((container_id, list(block_ids)))
                return frozenset(block_ids)

            with pytest.raises(
                RefusedError, match="block 2 belongs to a key, and 1 of 3"
            ) as caught:
                cluster.reconstruct(cluster.order([1]), needed=needed, pace=read.append)

            assert Code.INELIGIBLE is caught.value.code
            assert [] == read  # it is ordered again and again
            assert [(CONTAINER, [2])] == asked
            assert [] == cluster.nodes[6].store.replica_ids()
            doubts = {index: cluster.nodes[index].doubts for index in cluster.nodes}
            assert {3: [CONTAINER], 4: [CONTAINER], 5: [CONTAINER]} == {
                index: told for index, told in doubts.items() if told
            }

    def test_source_lost_after_listing_fails_a_needed_block(self, tmp_path: Path) -> None:
        """Enough sources have the block when the blocks are listed, and one less when they are
        read.
        """

        class Waning(CountingReads):
            lists_left = 1

            def ListBlocks(self, request, context):  # type: ignore[no-untyped-def]
                if not Waning.lists_left:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
                Waning.lists_left -= 1
                return super().ListBlocks(request)

        rest = groups_of(RS_3_2, LENGTHS)
        del rest[2]
        with ec_cluster(tmp_path, RS_3_2, LENGTHS, instead={5: rest}) as cluster:
            cluster.serve(dn2=Waning)

            with pytest.raises(RefusedError, match="block 2 belongs to a key, and 2 of 3"):
                cluster.reconstruct(
                    cluster.order([1]), needed=lambda _, block_ids: frozenset(block_ids)
                )

            assert [] == cluster.nodes[6].store.replica_ids()

    @pytest.mark.parametrize("deleted_on", [(2, 3, 4, 5), (2, 3), (2,)], ids=str)
    def test_a_block_that_is_deleted_meanwhile_costs_nothing_else(
        self, tmp_path: Path, deleted_on: tuple[int, ...]
    ) -> None:
        """
        Its key is deleted after it was listed and before it is read. It is left out, unless enough
        sources have it still, and hours of work are not thrown away for it.
        """
        with ec_cluster(tmp_path, RS_3_2, [30_000] * 3) as cluster:
            deleting = deletes_before_it_is_read(cluster, deleted_on)
            cluster.serve(dn2=deleting, dn3=deleting, dn4=deleting, dn5=deleting)
            asked: list[list[int]] = []

            def needed(_: ContainerId, block_ids: Sequence[BlockId]) -> frozenset[BlockId]:
                asked.append(list(block_ids))
                return frozenset()

            result = cluster.reconstruct(cluster.order([1]), needed=needed)

            left_out = [3] if len(deleted_on) > 1 else []
            assert left_out == list(result.orphans) == [one for ids in asked for one in ids]
            held = [block.block_id for block in cluster.nodes[6].store.view(CONTAINER).blocks()]
            assert [one for one in (1, 2, 3) if one not in left_out] == held
            assert ReplicaState.CLOSED is cluster.nodes[6].store.replica(CONTAINER).state

    def test_partly_written_orphan_leaves_nothing_at_the_target(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The block is deleted when some of its cells are at the target. The remains do not
        count as damage.
        """
        monkeypatch.setattr(coordinator, "SMALL_BYTES_MAX", 0)
        monkeypatch.setattr(message_groups, "GROUP_COUNT_MAX", 1)  # the first come before the last
        with ec_cluster(tmp_path, RS_3_2, [5_000, 5_000, 400_000]) as cluster:
            deleting = deletes_before_it_is_read(cluster, (2, 3, 4, 5), offset=20 * 4096)
            cluster.serve(dn2=deleting, dn3=deleting, dn4=deleting, dn5=deleting)

            result = cluster.reconstruct(cluster.order([1]))
            cluster.nodes[6].scan(CONTAINER)

            assert [3] == list(result.orphans)
            assert result.written_bytes > 10 * 4096
            facts = cluster.nodes[6].store.replica(CONTAINER)
            assert (ReplicaState.CLOSED, 0, 2) == (
                facts.state,
                facts.finding_count,
                facts.block_count,
            )

    def test_needed_block_lost_at_the_sources_fails_the_reconstruction(
        self, tmp_path: Path
    ) -> None:
        """A key names the block, and the sources lose it before it is read. No shard is made."""
        with ec_cluster(tmp_path, RS_3_2, [30_000] * 3) as cluster:
            losing = deletes_before_it_is_read(cluster, (2, 3))
            cluster.serve(dn2=losing, dn3=losing, dn4=losing, dn5=losing)

            with pytest.raises(RefusedError, match="block 3 belongs to a key"):
                cluster.reconstruct(cluster.order([1]), needed=lambda _, ids: frozenset(ids))

            assert [] == cluster.nodes[6].store.replica_ids()

    def test_silence_of_those_who_have_it_is_no_delete(self, tmp_path: Path) -> None:
        """One source reports the block as deleted, and the others do not answer. That does not
        prove the delete, even if it is unknown whether a key names the block.
        """

        class Silenced(CountingReads):
            def ReadChunk(self, request, context):  # type: ignore[no-untyped-def]
                if request.block_id.local_id == 3:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "busy")
                yield from super().ReadChunk(request)

            def GetBlocks(self, _request, context):  # type: ignore[no-untyped-def]
                context.abort(grpc.StatusCode.UNAVAILABLE, "busy")

        with ec_cluster(tmp_path, RS_3_2, [5_000] * 3) as cluster:
            cluster.serve(dn2=Silenced, dn3=Silenced)

            def delete() -> bool:
                cluster.nodes[4].store.free_blocks(CONTAINER, [BlockId(3)])
                return False

            with pytest.raises(UnavailableError, match="cells can be read"):
                cluster.reconstruct(cluster.order([1]), stop=delete)

            assert [] == cluster.nodes[6].store.replica_ids()

    def test_block_that_a_silent_source_may_have_is_not_left_out(self, tmp_path: Path) -> None:
        """Two of three sources know the block, and a fourth does not answer. Nobody can be asked
        whether a key names it, as under Ozone's SCM.
        """
        rest = groups_of(RS_3_2, LENGTHS)
        del rest[2]
        with ec_cluster(tmp_path, RS_3_2, LENGTHS, instead={3: rest}) as cluster:
            cluster.serve()
            order = cluster.order([1])
            unheard = replace(order.sources[-1], address="127.0.0.1:1")
            order = replace(order, sources=(*order.sources[:-1], unheard))

            with pytest.raises(UnavailableError, match=r"block 2: 2 of 3 .* shard 5 .*not answer"):
                cluster.reconstruct(order)

            assert [] == cluster.nodes[6].store.replica_ids()

    def test_silent_control_plane_fails_the_reconstruction(self, tmp_path: Path) -> None:
        """Without knowing which blocks the keys name, no block may be left out. The SCM orders
        the reconstruction again later.
        """
        rest = groups_of(RS_3_2, LENGTHS)
        del rest[2]

        def silent(_: ContainerId, __: Sequence[BlockId]) -> frozenset[BlockId]:
            raise UnavailableError(Code.UNAVAILABLE, "nobody answers")

        with ec_cluster(
            tmp_path, RS_3_2, LENGTHS, instead=dict.fromkeys((3, 4, 5), rest)
        ) as cluster:
            cluster.serve()

            with pytest.raises(UnavailableError, match="nobody answers"):
                cluster.reconstruct(cluster.order([1]), needed=silent)

            assert [] == cluster.nodes[6].store.replica_ids()

    def test_a_shard_claims_what_its_sources_do(self, tmp_path: Path) -> None:
        """The claim holds even if the last block was deleted since and the shard's own blocks
        alone would claim less.
        """
        with ec_cluster(tmp_path, RS_3_2, LENGTHS) as cluster:
            for index in RS_3_2.indexes:
                remove_blocks(cluster.nodes[index].store, CONTAINER, [BlockId(len(LENGTHS))])
            cluster.serve()

            cluster.reconstruct(cluster.order([1]))

            claims = {cluster.nodes[node].store.replica(CONTAINER).bcsid for node in cluster.nodes}
            assert {len(LENGTHS)} == claims


class TestTwoOfOneShard:
    def test_block_row_lost_by_one_of_two_equal_shards_is_rebuilt(self, tmp_path: Path) -> None:
        """Two datanodes have the same shard, as after a datanode came back. One lost the row of
        a block and has not noticed. The block is rebuilt, also if it is unknown whether a key
        names it.
        """
        with ec_cluster(tmp_path, RS_3_2, [20_000] * 3, spare=2) as cluster:
            write_shard(cluster.nodes[6].store, 2, cluster.groups)
            cluster.nodes[2].replica.delete_row(2, CONTAINER)
            cluster.serve()

            result = cluster.reconstruct(two_of_shard_2(cluster))

            assert (3, {}) == (result.block_count, result.orphans)
            cluster.assert_shard(7, 1)

    def test_second_holder_of_a_shard_serves_its_list_when_one_drops_out(
        self, tmp_path: Path
    ) -> None:
        """One datanode fails when its list is fetched again, and the other one has the whole
        list.
        """

        class Waning(CountingReads):
            lists_left = 1

            def ListBlocks(self, request, context):  # type: ignore[no-untyped-def]
                if not Waning.lists_left:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
                Waning.lists_left -= 1
                return super().ListBlocks(request)

        with ec_cluster(tmp_path, RS_3_2, [20_000] * 3, spare=2) as cluster:
            write_shard(cluster.nodes[6].store, 2, cluster.groups)
            cluster.serve(dn2=Waning)

            result = cluster.reconstruct(two_of_shard_2(cluster))

            assert (3, {}) == (result.block_count, result.orphans)
            cluster.assert_shard(7, 1)


def two_of_shard_2(cluster: EcCluster) -> RebuildTask:
    """The order to rebuild shard 1 at datanode 7 from 2, which datanode 6 has, too, and 3 and 4."""
    sources = [(2, 2), (6, 2), (3, 3), (4, 4)]
    return RebuildTask(
        CONTAINER,
        cluster.scheme,
        tuple(cluster.shard(node, index) for node, index in sources),
        (cluster.shard(7, 1),),
    )


def deletes_before_it_is_read(
    cluster: EcCluster, deleted_on: Sequence[int], *, offset: int = 0
) -> type[CountingReads]:
    """How datanodes serve of which some delete block 3 when any is asked for a chunk of it, from
    that offset on."""

    class Deleting(CountingReads):
        def ReadChunk(self, request):  # type: ignore[no-untyped-def]
            if request.block_id.local_id == 3 and request.offset >= offset:
                with DELETING:
                    for index in deleted_on:
                        cluster.nodes[index].store.free_blocks(CONTAINER, [BlockId(3)])
            yield from super().ReadChunk(request)

    return Deleting
