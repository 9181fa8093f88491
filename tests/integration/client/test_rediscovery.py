"""What a restored control plane learns of blocks from the datanodes that have them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from merkle.blockrow import encode_block
from merkle.replica import Bcsid, BlockData, BlockId
from suture.client.container_discovery import fetch_contents
from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.storage.datanodes import Datanode, dialled
from tests.support.storage.stored_replica import CONTAINER

ONE = BlockId(1)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Datanode]]:
    """Two datanodes with the same container."""
    datanodes = [Datanode(f"dn{number}", tmp_path / f"dn{number}") for number in (1, 2)]
    for datanode in datanodes:
        datanode.replica.create(blocks=1)
        datanode.serve()
    yield datanodes
    for datanode in datanodes:
        datanode.close()


def put(datanode: Datanode, block: BlockData) -> None:
    """Set the row of a block."""
    index = datanode.replica.store.volume_set.places[CONTAINER].index
    index.write(lambda rows: rows.put_block(CONTAINER, block.block_id, encode_block(block)))


@pytest.mark.parametrize("newest", [0, 1])
def test_rediscovery_takes_the_block_row_with_the_later_commit(
    pair: list[Datanode], newest: int
) -> None:
    """One replica missed the last commit. If its row were used because it was asked first, the
    file would be shorter than acknowledged, and would count as lost.
    """
    whole = pair[0].replica.store.view(CONTAINER).block(ONE)
    notes = (("key", "/a"), ("part", "0"))
    whole = replace(whole, bcsid=Bcsid(9), metadata=notes)
    put(pair[newest], whole)
    put(pair[1 - newest], replace(whole, bcsid=Bcsid(8), chunks=whole.chunks[:1]))
    replicas = [
        scm_pb2.ContainerInfoReplica(
            datanode=container_pb2.DatanodeEndpoint(datanode_id=one.datanode_id, address=name),
            replica=container_pb2.ReplicaReport(),
        )
        for name, one in zip(("dn1", "dn2"), pair, strict=True)
    ]

    with dialled(pair) as peers:
        info = scm_pb2.ContainerInfo(container_id=CONTAINER, replicas=replicas)
        seen = fetch_contents(info, lambda datanode: peers[datanode.address])

    [part] = seen.parts
    assert (9, whole.length_bytes) == (part.bcsid, part.length_bytes)
    assert len(whole.chunks) > 1
