"""Every field of the orders that an agent in its own process obeys, and of the calls that it then
makes at its peers. The test is the control plane and the peers.
"""

import itertools
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from agent.store.options import StoreOptions
from agent.store.replica_store import ReplicaStore
from merkle.replica import ContainerId
from suture.ec.scheme import CodecName, Scheme
from suture.wire.clients.peer import Peer
from suture.wire.v1 import container_pb2 as c
from suture.wire.v1 import datanode_pb2 as d
from suture.wire.v1 import scm_pb2 as s
from tests.support.control.scripted_calls import ScriptedCalls
from tests.support.control.scripted_scm import CLUSTER_ID, ScriptedScm
from tests.support.faults.victim import Victim, write_config
from tests.support.storage.ec_cluster import CONTAINER as CODED
from tests.support.storage.ec_cluster import ec_cluster
from tests.support.storage.stores import write_block
from tests.support.storage.three_replicas import CHUNK_BYTES, WAYS, ThreeReplicas

ME: Final = "victim"
DAMAGED, SHARD = ContainerId(7), ContainerId(9)
GARBAGE: Final = 5  # block with bytes behind its end, which a copy leaves out
LOST_ROWS: Final = {4, 9}  # blocks of the damaged replica whose row is gone
NUMBERS: Final = itertools.count(1)
EXECUTED: Final = s.CommandStatus.EXECUTED
RS_3_2: Final = Scheme(CodecName.RS, 3, 2, 4096)


@dataclass
class Scene:
    """An agent and those around it. `template` is a volume like its own, as it was at the start."""

    scm: ScriptedScm
    three: ThreeReplicas
    template: Path
    address: str

    def done(self, **order: Any) -> s.CommandStatus:
        """Order something, and return what became of it."""
        return done(self.scm, **order)


def done(scm: ScriptedScm, **order: Any) -> s.CommandStatus:
    """Order something, and return what became of it."""
    number = next(NUMBERS)
    scm.order(s.Command(**{"command_id": number, "term": scm.term} | order))
    status = scm.wait_for(number)
    assert status is not None
    return status


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """An agent with a damaged replica and a shard, and two peers with the intact replica."""
    folder = tmp_path_factory.mktemp("agent")
    with ScriptedScm() as scm, ThreeReplicas(folder, DAMAGED) as three:
        volume = three.damaged_volume()
        options = StoreOptions(reserve_bytes=0)
        opened = ReplicaStore.open([volume], cluster_id=CLUSTER_ID, datanode_id=ME, options=options)
        with closing(opened) as store:
            store.create_container(SHARD, replica_index=3)
            write_block(store, SHARD, 1, bcsid=6)
            store.close_container(SHARD, bcsid=6)
        with Victim(folder / "agent.log") as victim:
            three.copy(volume, folder / "template")
            address = victim.start(write_config(folder / "agent.toml", volume, scm.address))
            yield Scene(scm, three, folder / "template", address)
            victim.stop()


def endpoint(server: ScriptedCalls, name: str = "dn-peer") -> c.DatanodeEndpoint:
    """Return the address of a scripted peer."""
    return c.DatanodeEndpoint(datanode_id=name, address=server.address)


def test_copy_of_a_shard_is_announced_whole_and_its_arrival_reported(scene: Scene) -> None:
    """The header has every fact of the replica; the outcome has what the target answered."""
    replica = c.ReplicaReport(container_id=SHARD, state=c.CLOSED, used_bytes=71)
    with ScriptedCalls() as target:
        target.answers["ImportContainer"] = [d.ImportContainerResponse(replica=replica)]

        told = scene.done(replicate=s.ReplicateCommand(container_id=SHARD, target=endpoint(target)))

        parts = target.requests["ImportContainer"]
    assert (EXECUTED, replica) == (told.state, told.replicate.replica), told
    header = parts[0].header
    assert header == d.ImportHeader(
        cluster_id=CLUSTER_ID,
        source_datanode_id=ME,
        container_id=SHARD,
        state=c.CLOSED,
        replica_index=3,
        bcsid=6,
        origin_datanode_id=ME,
        data_bytes=header.data_bytes,
    )
    assert header.data_bytes >= told.replicate.bytes_sent > 0
    assert parts[-1].end == d.ImportEnd(block_count=1, data_bytes=told.replicate.bytes_sent)


def test_copy_of_damage_names_each_finding(scene: Scene) -> None:
    """The target is told of every damaged block, and that the replica was CLOSED before."""
    with ScriptedCalls() as target:
        target.answers["ImportContainer"] = [d.ImportContainerResponse()]

        scene.done(replicate=s.ReplicateCommand(container_id=DAMAGED, target=endpoint(target)))

        parts = target.requests["ImportContainer"]
    assert (c.UNHEALTHY, c.CLOSED) == (parts[0].header.state, parts[0].header.former_state)
    findings = [one for part in parts for one in part.findings.findings]
    assert WAYS.keys() <= {one.local_id for one in findings}
    assert {DAMAGED} == {one.container_id for one in findings}


def test_copy_is_at_its_target_what_it_was(scene: Scene, tmp_path: Path) -> None:
    """The second agent reports the facts of the replica, and the damage that the first declared."""
    with ScriptedScm() as scm, Victim(tmp_path / "agent.log") as victim:
        config = write_config(tmp_path / "agent.toml", tmp_path / "volume", scm.address)
        target = c.DatanodeEndpoint(address=victim.start(config))
        with Peer(target.address) as peer:
            target.datanode_id = peer.stub.Status(d.StatusRequest()).datanode_id
            assert scm.wait_until(lambda: scm.heartbeats > 0)
            told = [
                scene.done(
                    replicate=s.ReplicateCommand(container_id=container_id, target=target)
                ).replicate
                for container_id in (SHARD, DAMAGED)
            ]
            asked = [d.GetContainerRequest(container_id=number) for number in (SHARD, DAMAGED)]
            shard, damaged = [peer.stub.GetContainer(one).replica for one in asked]
            request = d.ListFindingsRequest(start_container_id=DAMAGED)
            findings = peer.stub.ListFindings(request).findings
            request = d.ListFindingsRequest(start_container_id=DAMAGED + 1)
            none = peer.stub.ListFindings(request).findings

    assert [SHARD, DAMAGED] == [one.replica.container_id for one in told]
    assert (3, 6, ME) == (shard.replica_index, shard.bcsid, shard.origin_datanode_id)
    assert (c.CLOSED, c.UNHEALTHY) == (shard.state, damaged.state)
    assert WAYS.keys() - {GARBAGE} <= {one.local_id for one in findings}
    assert [] == list(none)


def test_changes_of_a_trusted_replica_are_shown(scene: Scene) -> None:
    """Each chunk that differs is named with both of its leaves."""
    trusted = scene.three.peers[0]
    request = d.TrustReplicaRequest(
        container_id=DAMAGED,
        trusted_datanode_id=trusted.datanode_id,
        trusted_address=trusted.address,
        dry_run=True,
    )

    with Peer(scene.address) as peer:
        changes = peer.stub.TrustReplica(request).changes

    assert WAYS.keys() >= {one.local_id for one in changes} > set()
    assert {0, CHUNK_BYTES} == {one.offset for one in changes}
    assert all(one.after for one in changes)
    assert any(one.before for one in changes)
    assert not any(one.before == one.after for one in changes)


def test_term_in_the_answer_to_a_heartbeat_outdates_earlier_orders(scene: Scene) -> None:
    """A control plane of an earlier term cannot order anything from then on."""
    scm = scene.scm
    before, count = scm.term, scm.heartbeats
    scm.term += 1
    assert scm.wait_until(lambda: scm.heartbeats > count + 2)

    late = scene.done(term=before, refresh_volume_usage={})
    right = scene.done(refresh_volume_usage={})

    assert ("STALE_TERM", EXECUTED) == (late.code, right.state)


def test_delete_asks_its_witness_to_keep_the_replica(scene: Scene) -> None:
    """The witness must have read its replica within a time, and keep it for a time."""
    with ScriptedCalls() as witness:
        told = scene.done(
            delete=s.DeleteCommand(container_id=SHARD, force=True, witnesses=[endpoint(witness)])
        )

        [asked] = witness.requests["ProveReplica"]
    assert told.code == "NOT_PROVEN"
    assert (SHARD, 16) == (asked.container_id, len(asked.nonce))
    assert (3_600_000, 30_000) == (asked.age_max_ms, asked.keep_ms)


def test_lost_rows_are_restored_if_every_holder_is_accounted_for(
    scene: Scene, tmp_path: Path
) -> None:
    """A silent holder may have another version. One with the root of a peer, an empty one, and one
    whose datanode is dead may not.
    """
    three = scene.three
    three.copy(scene.template, tmp_path / "volume")
    with Peer(three.peers[0].address) as peer:
        request = d.GetContainerRequest(container_id=DAMAGED)
        tree = peer.stub.GetContainer(request).replica.tree
    holders = (
        [s.KnownHolder(datanode_id="dn-silent")],
        [
            s.KnownHolder(datanode_id="dn-same", tree=tree),
            s.KnownHolder(datanode_id="dn-empty", is_empty=True),
            s.KnownHolder(datanode_id="dn-dead", is_dead=True),
        ],
    )
    with ScriptedScm() as scm, Victim(tmp_path / "agent.log") as victim:
        address = victim.start(
            write_config(tmp_path / "agent.toml", tmp_path / "volume", scm.address)
        )
        waiting, healed = (
            done(
                scm,
                reconcile=s.ReconcileCommand(
                    container_id=DAMAGED, peers=three.peers, holders=silent
                ),
            ).reconcile
            for silent in holders
        )
        with Peer(address) as peer:
            three.assert_all_blocks(peer)

    left = {one.local_id for one in waiting.chunks if one.difference == "UNCONFIRMED"}
    assert LOST_ROWS == left
    assert any("dn-silent" in one.message for one in waiting.chunks)
    assert ("converged", c.CLOSED) == (healed.result, healed.state_after), healed


def shards(locations: Any) -> list[s.EcShard]:
    """Return the shards of an order."""
    return [
        s.EcShard(
            datanode=c.DatanodeEndpoint(datanode_id=one.datanode_id, address=one.address),
            replica_index=one.index,
        )
        for one in locations
    ]


def test_lost_shard_is_reconstructed_as_ordered(scene: Scene, tmp_path: Path) -> None:
    """The agent reads the sources that the order names, and writes the target. It creates the
    replica in a state in which only a reconstruction writes.
    """
    with ec_cluster(tmp_path, RS_3_2, (5_000, 100_000), spare=1) as cluster:
        cluster.serve()
        lost = cluster.order([2])
        order = s.ReconstructCommand(
            container_id=CODED,
            scheme=s.EcScheme(codec="rs", data=3, parity=2, cell_bytes=4096),
            sources=shards(lost.sources),
            targets=shards(lost.targets),
        )

        made = scene.done(reconstruct=order)

        assert (EXECUTED, "reconstruct") == (made.state, made.type), made
        assert made.reconstruct.block_count == 2
        assert made.reconstruct.bytes_written > 0
        cluster.assert_shard(6, 2)
        with ScriptedCalls() as target:
            order.targets[0].datanode.CopyFrom(endpoint(target))
            scene.done(reconstruct=order)
            [created] = target.requests["CreateContainer"]
            blocks = [one for sent in target.requests["WriteBlocks"] for one in sent.blocks]
            closed = target.requests["CloseContainer"]
        assert created == d.CreateContainerRequest(
            container_id=CODED, replica_index=2, state=c.RECOVERING
        )
        assert {(CODED, 2)} == {
            (one.block_id.container_id, one.block_id.replica_index) for one in blocks
        }
        assert [(CODED, 2)] == [(one.container_id, one.bcsid) for one in closed]
