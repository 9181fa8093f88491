"""What comes in from outside: every broken field is named, nothing else happens."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.plan.reconcile_outcome import PeerState, ReconcileVerdict
from merkle.replica import ReplicaState
from scm.api import datanode_wire, wire
from scm.api.call_values import Heartbeat
from scm.cluster.nodes import Registration
from suture.errors import RefusedError, SutureError
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2

GOOD_REPLICA = container_pb2.ReplicaReport(container_id=1, state=container_pb2.CLOSED)


def register(**fields: object) -> Callable[[], object]:
    """Parse a registration that is good but for these fields."""
    message = scm_pb2.RegisterRequest(
        datanode_id="dn1", address="host:1", boot_id=1, layout_version=1
    )
    for name, value in fields.items():
        setattr(message, name, value)
    return lambda: datanode_wire.registration_from(message)


def heartbeat(*replicas: container_pb2.ReplicaReport) -> Callable[[], Heartbeat]:
    """Parse a heartbeat with one report."""
    message = scm_pb2.HeartbeatRequest(
        datanode_id="dn1", boot_id=1, reports=[scm_pb2.ContainerReport(replicas=replicas)]
    )
    return lambda: datanode_wire.heartbeat_from(message, now_ms=1)


def volumes(*volume_ids: str) -> Callable[[], Registration]:
    """Parse a registration with these volumes."""
    told = [datanode_pb2.VolumeStatus(volume_id=volume_id) for volume_id in volume_ids]
    message = scm_pb2.RegisterRequest(
        datanode_id="dn1", address="host:1", boot_id=1, layout_version=1, volumes=told
    )
    return lambda: datanode_wire.registration_from(message)


def reporter(datanode_id: str) -> Callable[[], object]:
    """Parse the heartbeat of a datanode with this id."""
    message = scm_pb2.HeartbeatRequest(datanode_id=datanode_id, boot_id=1)
    return lambda: datanode_wire.heartbeat_from(message, now_ms=1)


def status(**fields: object) -> Callable[[], Heartbeat]:
    """Parse a heartbeat with one command status."""
    message = scm_pb2.HeartbeatRequest(
        datanode_id="dn1",
        boot_id=1,
        command_statuses=[scm_pb2.CommandStatus(**fields)],  # type: ignore[arg-type]
    )
    return lambda: datanode_wire.heartbeat_from(message, now_ms=1)


def key(name: str, size_bytes: int = 0, *blocks: scm_pb2.BlockLocation) -> scm_pb2.KeyInfo:
    """Build a key."""
    return scm_pb2.KeyInfo(key=name, size=size_bytes, blocks=blocks)


def block(container_id: int = 1, local_id: int = 1, length_bytes: int = 5) -> scm_pb2.BlockLocation:
    """Build a block of a key."""
    return scm_pb2.BlockLocation(
        block_id=container_pb2.BlockId(container_id=container_id, local_id=local_id, bcsid=1),
        length=length_bytes,
    )


def plan(**fields: object) -> Callable[[], object]:
    """Parse a plan of one row."""
    row = scm_pb2.PlanRow(**({"container_id": 1, "action": "reconcile"} | fields))  # type: ignore[arg-type]
    message = scm_pb2.ApplyPlanRequest(snapshot_id="s", run_id="r", rows=[row])
    return lambda: wire.plan_rows_from(message)


class TestRefusals:
    @pytest.mark.parametrize(
        ("parse", "field"),
        [
            (register(datanode_id=""), "datanode_id"),
            (register(datanode_id="x" * 129), "datanode_id"),
            (register(datanode_id="a\nb"), "datanode_id"),
            (register(datanode_id="\U0001f600" * 128), "datanode_id"),
            (register(datanode_id="dn\u00e4"), "datanode_id"),
            (reporter("\U0001f600" * 128), "datanode_id"),
            (register(address="host"), "address"),
            (register(address=":1"), "address"),
            (register(address="host:0"), "address"),
            (register(address="host:70000"), "address"),
            (register(address="host:²"), "address"),
            (register(boot_id=0), "boot_id"),
            (lambda: wire.sizes_from(scm_pb2.AllocateBlocksRequest()), "sizes"),
            (lambda: wire.sizes_from(scm_pb2.AllocateBlocksRequest(sizes=[2**63])), "sizes[0]"),
            (
                lambda: wire.sizes_from(scm_pb2.AllocateBlocksRequest(sizes=[1] * 10_001)),
                "sizes: 10001 are more than 10000",
            ),
            (lambda: wire.client_id_from(""), "client_id"),
            (lambda: wire.keys_from([key("")]), "keys[0].key: is empty"),
            (lambda: wire.keys_from([key("ä" * 513)]), "keys[0].key: 1026 bytes"),
            (lambda: wire.keys_from([key("aä" * 513)]), "it begins with 'aä"),
            (lambda: wire.keys_from([key("a\x00b")]), "keys[0].key"),
            (lambda: wire.keys_from([key("a\x7f")]), "keys[0].key"),
            (lambda: wire.keys_from([key("a\x85")]), "keys[0].key"),
            (lambda: wire.keys_from([key("a", 4, block())]), "keys[0].size: 4, but"),
            (lambda: wire.keys_from([key("a"), key("a")]), "keys[1].key"),
            (
                lambda: wire.keys_from([key("a", 5, block()), key("b", 5, block())]),
                "keys[1].blocks: block 1",
            ),
            (lambda: wire.keys_from([key("a", 0, block(0, length_bytes=0))]), "keys[0].blocks[0]"),
            (lambda: wire.container_ids_from([]), "container_ids: is empty"),
            (lambda: wire.container_ids_from([0]), "container_ids[0]"),
            (plan(action="explode"), "rows[0].action"),
            (plan(targets=[""]), "rows[0].targets[0]"),
            (plan(sources=["a"] * 16_384), "rows[0].sources: 16384"),
            (lambda: wire.doomed_keys_from(scm_pb2.DeleteKeysRequest()), "keys: is empty"),
            (lambda: wire.fingerprints_from([1], [1, 2]), "worlds: 1 for 2"),
            (
                lambda: wire.node_order_from(scm_pb2.CommandNodesRequest(type="dance")),
                "type: 'dance'",
            ),
            (plan(container_id=0), "rows[0].container_id"),
            (plan(replicas=[scm_pb2.PlanReplica(datanode_id="a")]), "rows[0].replicas[0].state"),
            (
                lambda: wire.plan_rows_from(scm_pb2.ApplyPlanRequest(run_id="r")),
                "snapshot_id: is empty",
            ),
        ],
    )
    def test_the_field_is_named(self, parse: Callable[[], object], field: str) -> None:
        """A person finds the wrong line in the client from the message alone."""
        with pytest.raises(RefusedError) as caught:
            parse()

        assert field in str(caught.value)

    @pytest.mark.parametrize(
        ("parse", "field"),
        [
            (volumes(""), "volumes[0].volume_id"),
            (volumes("v1", "\U0001f600" * 128), "volumes[1].volume_id"),
            (volumes(*["v"] * 257), "volumes: 257 are more than 256"),
            (heartbeat(container_pb2.ReplicaReport(state=container_pb2.OPEN)), "container_id"),
            (heartbeat(container_pb2.ReplicaReport(container_id=2**63)), "container_id"),
            (heartbeat(GOOD_REPLICA, container_pb2.ReplicaReport(container_id=1)), "replicas[1]"),
            (
                heartbeat(
                    container_pb2.ReplicaReport(
                        container_id=1,
                        state=container_pb2.CLOSED,
                        tree=container_pb2.TreeSummary(root=1),
                    )
                ),
                "tree.algorithm",
            ),
            (status(command_id=1), "command_statuses[0].state"),
            (status(state=scm_pb2.CommandStatus.EXECUTED), "command_statuses[0].command_id"),
            (
                status(
                    command_id=1,
                    state=scm_pb2.CommandStatus.EXECUTED,
                    delete_blocks=scm_pb2.DeleteBlocksOutcome(
                        transactions=[scm_pb2.DeleteTransactionResult()] * 10_001
                    ),
                ),
                "command_statuses[0].delete_blocks.transactions: 10001",
            ),
        ],
    )
    def test_refused_part_of_a_heartbeat_is_named(
        self, parse: Callable[[], Heartbeat | Registration], field: str
    ) -> None:
        """The rest of the heartbeat counts: the datanode is alive and has its replicas."""
        (refused,) = parse().refused

        assert field in refused

    @settings(deadline=None)
    @given(st.binary(max_size=200), st.sampled_from(["register", "heartbeat", "commit", "plan"]))
    def test_any_parsed_message_is_a_value_or_a_refusal(self, data: bytes, kind: str) -> None:
        """No other exception leaves, whatever the bytes say."""
        message, parse = PARSERS[kind]
        try:
            message.ParseFromString(data)  # type: ignore[attr-defined]
        except DecodeError:
            return

        with suppress(SutureError):
            parse(message)


PARSERS: dict[str, tuple[object, Callable[..., object]]] = {
    "register": (scm_pb2.RegisterRequest(), datanode_wire.registration_from),
    "heartbeat": (
        scm_pb2.HeartbeatRequest(),
        lambda message: datanode_wire.heartbeat_from(message, now_ms=1),
    ),
    "commit": (scm_pb2.CommitKeyRequest(), lambda message: wire.keys_from(message.keys)),
    "plan": (scm_pb2.ApplyPlanRequest(), wire.plan_rows_from),
}


class TestValues:
    def test_a_row_names_as_many_replicas_as_a_verification_judges(self) -> None:
        """A container that copies got out of hand of needs it most, and the rows beside it, which
        come in the same call, need it as well."""
        replicas = [
            scm_pb2.PlanReplica(datanode_id=f"dn{number}", state=container_pb2.CLOSED)
            for number in range(16_383)
        ]
        row = scm_pb2.PlanRow(container_id=2, action="reconcile", replicas=replicas)
        message = scm_pb2.ApplyPlanRequest(snapshot_id="s", run_id="r" * 128, rows=[row])

        (taken,) = wire.plan_rows_from(message)

        assert 16_383 == len(taken.replicas)

    def test_a_replica_that_cannot_be_loaded_is_unhealthy(self) -> None:
        """The replica is unhealthy, whatever state it reports."""
        report = scm_pb2.ContainerReport(
            replicas=[
                container_pb2.ReplicaReport(
                    container_id=1, state=container_pb2.CLOSED, load_error="bad"
                )
            ]
        )
        message = scm_pb2.HeartbeatRequest(datanode_id="dn1", reports=[report])

        (replica,) = datanode_wire.heartbeat_from(message, now_ms=1).reports[0].replicas

        assert (ReplicaState.UNHEALTHY, "bad") == (replica.state, replica.load_error)

    def test_no_tree_stays_no_tree_and_root_zero_stays_zero(self) -> None:
        """Absence is never 0, and 0 is a root like any other."""
        tree = container_pb2.TreeSummary(algorithm=container_pb2.TREE_CRC32C, root=0)
        reports = [GOOD_REPLICA, container_pb2.ReplicaReport(container_id=2, state=4, tree=tree)]
        message = scm_pb2.HeartbeatRequest(
            datanode_id="dn1", reports=[scm_pb2.ContainerReport(replicas=reports)]
        )

        without, with_root = datanode_wire.heartbeat_from(message, now_ms=1).reports[0].replicas

        assert without.tree is None
        assert with_root.tree is not None
        assert 0 == with_root.tree.root

    def test_an_outcome_too_large_to_keep_loses_rows_and_not_counts(self) -> None:
        """The counts are kept, and the chunks are in the datanode's log."""
        detail = scm_pb2.ReconcileOutcome(
            container_id=1,
            result="converged",
            chunk_count=5_000,
            chunks=[scm_pb2.ChunkOutcome(message="x" * 100)] * 5_000,
        )
        message = scm_pb2.HeartbeatRequest(
            datanode_id="dn1",
            command_statuses=[
                scm_pb2.CommandStatus(
                    command_id=1, state=scm_pb2.CommandStatus.EXECUTED, reconcile=detail
                )
            ],
        )

        (outcome,) = datanode_wire.heartbeat_from(message, now_ms=1).outcomes
        kept = scm_pb2.ReconcileOutcome.FromString(outcome.detail)

        assert ("converged", 5_000, 0) == (kept.result, kept.chunk_count, len(kept.chunks))

    @pytest.mark.parametrize(
        ("result", "peer_state", "is_complete"),
        [
            (ReconcileVerdict.CONVERGED, PeerState.USED, True),
            (ReconcileVerdict.NOTHING_TO_DO, PeerState.EQUAL, True),
            (ReconcileVerdict.PARTIAL, PeerState.BAD_DATA, True),
            (ReconcileVerdict.NON_CONVERGENT, PeerState.USED, True),
            (ReconcileVerdict.PARTIAL, PeerState.UNREACHABLE, False),
            (ReconcileVerdict.INTERRUPTED, PeerState.USED, False),
            (ReconcileVerdict.NO_PEER, PeerState.NO_TREE, False),
        ],
    )
    def test_reconcile_outcome_is_complete_if_it_asked_every_peer_to_the_end(
        self, result: ReconcileVerdict, peer_state: PeerState, is_complete: bool
    ) -> None:
        """The words are those of the agent."""
        status = scm_pb2.CommandStatus(
            command_id=1,
            state=scm_pb2.CommandStatus.EXECUTED,
            reconcile=scm_pb2.ReconcileOutcome(
                result=result,
                peers=[
                    scm_pb2.PeerOutcome(datanode_id="dn2", state=PeerState.EQUAL),
                    scm_pb2.PeerOutcome(datanode_id="dn3", state=peer_state),
                ],
            ),
        )
        message = scm_pb2.HeartbeatRequest(datanode_id="dn1", command_statuses=[status])

        (outcome,) = datanode_wire.heartbeat_from(message, now_ms=1).outcomes

        assert is_complete is outcome.is_complete

    def test_volumes_keep_what_a_person_needs(self) -> None:
        """A failed volume keeps its error."""
        volume = datanode_pb2.VolumeStatus(volume_id="v", path="/d", failed=True, error="EIO")
        message = scm_pb2.RegisterRequest(
            datanode_id="dn1", address="h:1", boot_id=1, layout_version=1, volumes=[volume]
        )

        (found,) = datanode_wire.registration_from(message).volumes

        assert (True, "EIO") == (found.failed, found.error)

    def test_a_failed_volume_may_have_no_id(self) -> None:
        """One disk with an unreadable VERSION does not silence its datanode. A healthy volume
        has an id.
        """
        nameless = datanode_pb2.VolumeStatus(path="/d", failed=True, error="EIO")
        message = scm_pb2.HeartbeatRequest(datanode_id="dn1", volumes=[nameless])

        (found,) = datanode_wire.heartbeat_from(message, now_ms=1).volumes

        assert ("", "/d", "EIO") == (found.volume_id, found.path, found.error)
        message.volumes[0].failed = False
        assert () == datanode_wire.heartbeat_from(message, now_ms=1).volumes
