"""Shards that have less of a group than the others: what was acknowledged is made of these."""

from dataclasses import replace
from pathlib import Path

import pytest

from merkle.blockrow import encode_block
from merkle.replica import BlockId
from suture.client.container_discovery import fetch_contents
from suture.client.ecreader import GroupReader
from suture.ec.scheme import CodecName, Scheme
from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.storage.ec_cluster import CONTAINER, EcCluster, ec_cluster, flip, groups_of
from tests.support.storage.ec_groups import cut_group

RS_3_2 = Scheme(CodecName.RS, 3, 2, 4096)
LENGTHS = (100_000, 5_000)
WHOLE_STRIPES = LENGTHS[0] // RS_3_2.stripe_bytes


def stale(path: Path, *, stripe_count: int, index: int = 5) -> "EcCluster":
    """Return a cluster in which one shard is as it was after so many stripes of block 1."""
    groups = groups_of(RS_3_2, LENGTHS)
    groups[1] = cut_group(groups[1], stripe_count)
    return EcCluster(path, RS_3_2, LENGTHS, instead={index: groups})


@pytest.mark.parametrize("stripe_count", [0, 1, WHOLE_STRIPES])
class TestStale:
    def test_a_lost_shard_is_rebuilt_whole(self, tmp_path: Path, stripe_count: int) -> None:
        """
        Every byte was acknowledged by all five. A rebuilt shard that ends early leaves two that
        do, and the next loss takes the end of the file for good.
        """
        cluster = stale(tmp_path, stripe_count=stripe_count)
        try:
            cluster.serve()

            result = cluster.reconstruct(cluster.order([1]))

            assert {} == result.orphans
            cluster.assert_shard(6, 1)
        finally:
            cluster.close()

    def test_a_client_reads_all(self, tmp_path: Path, stripe_count: int) -> None:
        """The key has the stored length, and four shards have the data."""
        cluster = stale(tmp_path, stripe_count=stripe_count)
        try:
            cluster.serve()
            places = [*cluster.nodes.values()][:5]
            reader = GroupReader(CONTAINER, RS_3_2, places, cluster.peer, cluster.executor)

            data = b"".join(reader.read(BlockId(1), LENGTHS[0]))

            assert cluster.groups[1].data == data
        finally:
            cluster.close()

    def test_damage_behind_its_end_is_repaired(self, tmp_path: Path, stripe_count: int) -> None:
        """
        In the last stripe of another shard, which the stale one has not.
        """
        cluster = stale(tmp_path, stripe_count=stripe_count)
        try:
            cluster.serve()
            flip(cluster.nodes[1], 1, WHOLE_STRIPES * RS_3_2.cell_bytes + 5)

            cluster.mend(1, peers=(2, 3, 4, 5))

            cluster.assert_shard(1, 1)
        finally:
            cluster.close()


def test_parity_names_it(tmp_path: Path) -> None:
    """The parity scrub reports the shard whose block differs, and no wrong stripe."""
    cluster = stale(tmp_path, stripe_count=1)
    try:
        cluster.serve()

        report = cluster.verify_parity()

        assert ((1, 5),) == report.missing_shards
        assert ((), {}) == (report.faults, report.orphans)
    finally:
        cluster.close()


def test_a_restored_control_plane_learns_the_whole_length(tmp_path: Path) -> None:
    """The length is learned from every shard. A file with a part that is too short would
    otherwise count as lost.
    """
    cluster = stale(tmp_path, stripe_count=1, index=1)
    try:
        for index in RS_3_2.indexes:
            store = cluster.nodes[index].store
            block = store.view(CONTAINER).block(BlockId(1))
            noted = encode_block(replace(block, metadata=(*block.metadata, ("part", "0"))))
            index_of = store.volume_set.places[CONTAINER].index
            index_of.write(lambda rows, noted=noted: rows.put_block(CONTAINER, BlockId(1), noted))
        cluster.serve()
        replicas = [
            scm_pb2.ContainerInfoReplica(
                datanode=container_pb2.DatanodeEndpoint(
                    datanode_id=cluster.nodes[index].datanode_id,
                    address=cluster.nodes[index].address,
                ),
                replica=container_pb2.ReplicaReport(replica_index=index),
            )
            for index in RS_3_2.indexes
        ]
        info = scm_pb2.ContainerInfo(container_id=CONTAINER, scheme=str(RS_3_2), replicas=replicas)

        seen = fetch_contents(info, cluster.peer)

        assert [LENGTHS[0]] == [part.length_bytes for part in seen.parts]
        assert [] == seen.torn
    finally:
        cluster.close()


def test_with_too_many_stale_ones_what_all_have_is_rebuilt(tmp_path: Path) -> None:
    """Three of five shards have the first stripe only, so a second one was never acknowledged
    and cannot be computed. The group ends where enough shards have it.
    """
    groups = groups_of(RS_3_2, LENGTHS)
    groups[1] = cut_group(groups[1], 1)
    instead = dict.fromkeys((3, 4, 5), groups)
    with ec_cluster(tmp_path, RS_3_2, LENGTHS, instead=instead) as cluster:
        cluster.serve()

        cluster.reconstruct(cluster.order([1]))

        rebuilt = cluster.nodes[6].store.view(CONTAINER).block(BlockId(1))
        assert RS_3_2.cell_bytes == rebuilt.length_bytes
        assert str(RS_3_2.stripe_bytes) == dict(rebuilt.metadata)["blockGroupLen"]
