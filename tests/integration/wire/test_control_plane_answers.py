"""Whole answers of a control plane in states that it rarely has, and the parts of requests that
decide about them, over a real connection. The test is the operator.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from merkle.replica import LAYOUT_VERSION, ReplicaState
from scm.api.call_values import Heartbeat
from scm.api.replication_report import LastVerification
from scm.state.entities import CommandKind
from scm.state.options import ScmOptions
from suture.wire.mapping.replica_columns import column_report
from suture.wire.mapping.rpc_services import SCM, Stub
from suture.wire.v1 import scm_pb2 as pb
from suture.wire.v1.datanode_pb2 import VolumeStatus
from tests.support.control.restored import NODES, TAKEN_MS, restored_world
from tests.support.control.scm_world import GIB, ScmWorld, confirm, replica, volume

MANY: Final = ("dn1", "dn2", "dn3", "dn4", "dn5")
CAPACITY: Final = 100_000
MINUTE_MS: Final = 60_000
OPTIONS: Final = ScmOptions(heal=False, stale_after_ms=10**6, dead_after_ms=2 * 10**6)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Five datanodes that have reported."""
    with ScmWorld(tmp_path, OPTIONS).running() as made:
        made.join(*MANY)
        confirm(made, *MANY)
        yield made


@contextmanager
def stub(world: ScmWorld) -> Iterator[Any]:
    """Serve the control plane, and dial it."""
    with world.served() as address, grpc.insecure_channel(address) as channel:
        yield Stub(channel, SCM)


def applied(scm: Any, row: pb.PlanRow) -> pb.ContainerDecision:
    """Apply one row of a plan."""
    request = pb.ApplyPlanRequest(snapshot_id="snapshot", run_id="run", rows=[row])
    [decision] = scm.ApplyPlan(request).decisions
    return decision


def test_copy_of_a_plan_has_its_source_count_and_reason(world: ScmWorld) -> None:
    made = world.made_closed()
    number = made.container_id
    gone, first, second = sorted(r.datanode_id for r in world.state.replicas.of(number))
    world.beat(gone, replica(gone, ReplicaState.DELETED, container_id=number))
    with stub(world) as scm:
        row = pb.PlanRow(container_id=number, action="replicate", reason="too few", copies=1)
        row.sources.append(second)
        decision = applied(scm, row)

    [command_id] = decision.command_ids
    command = world.state.commands.get(command_id)
    assert command is not None
    assert (second, "plan: too few") == (command.datanode_id, command.why)
    assert first != second


def test_delete_of_a_plan_needs_its_target_and_its_force(world: ScmWorld) -> None:
    number = world.made_closed().container_id
    held = sorted(r.datanode_id for r in world.state.replicas.of(number))
    [extra, _] = [name for name in MANY if name not in held]
    world.beat(extra, replica(extra, container_id=number, bcsid=1))
    with stub(world) as scm:
        for name in (*held, extra):
            row = pb.PlanRow(container_id=number, action="delete", targets=[name])
            refused = applied(scm, row)
            row.forced = True
            decision = applied(scm, row)
            if decision.code == "OK":
                break

    assert ("STALE_PLAN", "OK") == (refused.code, decision.code)
    [command_id] = decision.command_ids
    command = world.state.commands.get(command_id)
    assert command is not None
    assert (name, CommandKind.DELETE) == (command.datanode_id, command.kind)


def test_copy_is_queued_behind_others_of_its_source(world: ScmWorld) -> None:
    """The preview estimates the time that those take. Only one datanode can be a source."""
    numbers = [world.made_closed().container_id for _ in range(2)]
    source, target = MANY[0], MANY[-1]
    for name in MANY:
        state = ReplicaState.DELETED if name in MANY[3:] else ReplicaState.CLOSED
        held = [replica(name, state, container_id=number, bcsid=1) for number in numbers]
        world.queues[name] = (("replicate", 99 if name in MANY[1:4] else 0),)
        world.beat(name, *(replace(one, used_bytes=GIB) for one in held))
    first, second = (
        pb.ReplicateContainersRequest(container_ids=[number], target_datanode_id=target)
        for number in numbers
    )
    second.dry_run = True
    with stub(world) as scm:
        [alone] = scm.ReplicateContainers(second).decisions
        scm.ReplicateContainers(first)
        [behind] = scm.ReplicateContainers(second).decisions

    [one], [two] = alone.orders, behind.orders
    assert (source, source) == (one.datanode_id, two.datanode_id)
    assert (0, one.duration_ms, one.duration_ms) == (
        one.queued_ms,
        two.queued_ms,
        two.duration_ms,
    )
    assert one.duration_ms > 0


def test_report_has_the_last_verification_and_what_is_rebuilt(world: ScmWorld) -> None:
    world.beat("dn1", replica("dn1", ReplicaState.RECOVERING, container_id=77, root=None))
    with world.control.access.change() as change:
        told = LastVerification(71, {"OK": 3, "STALE_PLAN": 2}, "the job ended early")
        world.control.chronicle.verified(change, told)
    world.control.tick()
    with stub(world) as scm:
        answer = scm.GetReport(pb.GetReportRequest())

    answer.ClearField("generated_at_ms")
    assert answer == pb.GetReportResponse(
        states=answer.states,
        conditions=answer.conditions,
        verified_at_ms=71,
        decisions={"OK": 3, "STALE_PLAN": 2},
        verify_error="the job ended early",
        recovering_replica_count=1,
        waits=answer.waits,
    )


def test_queues_count_containers_and_name_busy_datanodes(world: ScmWorld) -> None:
    """Nothing can be ordered, because every datanode has much to do."""
    few, many = (world.made_closed().container_id for _ in range(2))
    holder = min(r.datanode_id for r in world.state.replicas.of(few))
    world.beat(holder, replica(holder, ReplicaState.DELETED, container_id=few))
    for name in MANY:
        world.queues[name] = (("replicate", 99), ("delete", 999))
        world.beat(name, replica(name, container_id=many, bcsid=1))
    world.control.tick()
    with stub(world) as scm:
        answer = scm.GetQueues(pb.GetQueuesRequest())

    assert (1, 1) == (answer.under_replicated_count, answer.over_replicated_count)
    assert list(MANY) == [one.datanode_id for one in answer.nodes if one.excluded]


def test_departure_has_all_that_it_waits_for(world: ScmWorld) -> None:
    """One container has its only copies on the datanode, and one is still written."""
    locked, copied = (world.made_closed().container_id for _ in range(2))
    [opened, *_] = world.write("writer", "open", 10)
    leaving = min(r.datanode_id for r in world.state.replicas.of(locked))
    for name in MANY:
        here = [replica(name, container_id=copied, bcsid=1)] if name == leaving else []
        if name == leaving:
            here.append(replica(name, container_id=locked, bcsid=1))
            here.append(
                replica(
                    name,
                    ReplicaState.OPEN,
                    container_id=opened.container_id,
                    bcsid=opened.bcsid,
                    root=None,
                )
            )
        world.beat(name, *here, full=True)
    with stub(world) as scm:
        request = pb.SetOperationalStatesRequest(datanode_ids=[leaving], op_state="DECOMMISSIONING")
        scm.SetOperationalStates(request)
        scm.ReplicateContainers(pb.ReplicateContainersRequest(container_ids=[copied]))
        world.control.tick()
        answer = scm.ListDecommissions(pb.ListDecommissionsRequest())
        [departure] = answer.departures
        rest = pb.SetOperationalStatesRequest(
            datanode_ids=[leaving], op_state="ENTERING_MAINTENANCE", force=True
        )
        scm.SetOperationalStates(rest)
        world.control.tick()
        resting = scm.ListDecommissions(pb.ListDecommissionsRequest())

    numbers = sorted([locked, copied, opened.container_id])
    assert departure == pb.Departure(
        datanode_id=leaving,
        op_state="DECOMMISSIONING",
        health="HEALTHY",
        container_count=3,
        copying_count=departure.copying_count,
        required_count=3,
        unclosed_count=1,
        container_ids=numbers,
        locked_count=departure.locked_count,
    )
    assert departure.copying_count > 0
    assert 2 <= departure.locked_count == answer.leaving_locked_count
    assert (0, departure.locked_count) == (
        resting.leaving_locked_count,
        resting.resting_locked_count,
    )


def test_departure_of_too_many_datanodes_needs_force(world: ScmWorld) -> None:
    world.made_closed()
    request = pb.SetOperationalStatesRequest(
        datanode_ids=MANY[:3], op_state="DECOMMISSIONING", dry_run=True
    )
    with stub(world) as scm:
        refused = list(scm.SetOperationalStates(request).decisions)
        request.skipped_checks[:] = ["sources", "space"]
        refused += scm.SetOperationalStates(request).decisions
        request.skipped_checks[:] = ["nodes"]
        skipped = scm.SetOperationalStates(request).decisions
        request.skipped_checks[:] = []
        request.force = True
        forced = scm.SetOperationalStates(request).decisions

    assert {"PRECHECK_FAILED"} == {one.code for one in refused}
    assert {True} == {one.message.endswith("(nodes)") for one in refused}
    assert ["OK"] * 3 == [one.code for one in skipped]
    assert {True} == {one.message.startswith("in spite of: ") for one in skipped}
    assert ["OK"] * 3 == [one.code for one in forced]


def test_balancing_names_its_moves_and_what_it_moved(tmp_path: Path) -> None:
    full, empty = MANY[:3], MANY[3:]
    with ScmWorld(tmp_path, OPTIONS).running() as world:
        world.join(*full)
        confirm(world, *full)
        number = world.made_closed().container_id
        world.join(*empty)
        for name in MANY:
            used = 0 if name in empty else CAPACITY * 9 // 10
            disk = volume(capacity_bytes=CAPACITY, available_bytes=CAPACITY - used)
            disk = replace(disk, used_bytes=used)
            world.control.datanodes.heartbeat(Heartbeat(name, 1, (disk,), (), (), (), None, 0))
        confirm(world, *empty)
        with stub(world) as scm:
            started = scm.Balance(pb.BalanceRequest(threshold_permille=100, iteration_count=3))
            world.control.tick()
            running = scm.Balance(pb.BalanceRequest())
            [move] = running.moves
            source = move.source_datanode_id
            world.execute(source, world.call(source))
            target = move.target_datanode_id
            world.beat(target, replica(target, container_id=number, bcsid=1))
            world.control.tick()
            world.execute(source, world.call(source))
            world.beat(source, replica(source, ReplicaState.DELETED, container_id=number))
            world.control.tick()
            moved = scm.Balance(pb.BalanceRequest())

    assert started.running
    assert move == pb.BalanceMove(
        container_id=number,
        source_datanode_id=min(full, key=lambda name: name != source),
        target_datanode_id=max(empty, key=lambda name: name == target),
        bytes=1_000,
    )
    assert (1, 0) == (running.iteration, running.moved_count)
    assert (1, 1_000) == (moved.moved_count, moved.moved_bytes)


def test_cold_start_has_a_time_left(world: ScmWorld) -> None:
    world.restart(is_cold=True)
    with stub(world) as scm:
        answer = scm.SafeMode(pb.SafeModeRequest())

    assert answer.reason
    assert answer == pb.SafeModeResponse(
        on=True,
        reason=answer.reason,
        missing_datanode_ids=MANY,
        cold_start=True,
        expected_count=len(MANY),
        left_ms=answer.left_ms,
    )
    assert 0 < answer.left_ms < 60 * MINUTE_MS


def test_nodes_and_places_of_a_key_are_whole(tmp_path: Path) -> None:
    """Racks that are not managed, the cluster, and how many replicas are equally good."""
    options = OPTIONS.model_copy(update={"managed_racks": "/rack-1"})
    with ScmWorld(tmp_path, options).running() as world:
        world.join("dn1", "dn2", "dn3")
        world.join("dn4", racks=("/rack-2",))
        confirm(world, "dn1", "dn2", "dn3", "dn4")
        number = world.made_closed().container_id
        world.beat("dn1", replica("dn1", ReplicaState.UNHEALTHY, container_id=number))
        with stub(world) as scm:
            nodes = scm.ListNodes(pb.ListNodesRequest())
            [name] = [one.key for one in scm.ListKeys(pb.ListKeysRequest()).keys]
            found = scm.LookupKey(pb.LookupKeyRequest(key=name))
        cluster_id = world.state.cluster_id

    assert (cluster_id, version("suture")) == (nodes.cluster_id, nodes.version)
    assert {"dn4": True} == {one.datanode_id: True for one in nodes.nodes if one.unmanaged}
    [places] = found.containers
    assert (number, 2, "dn1") == (
        places.container_id,
        places.equal_count,
        places.replicas[-1].datanode_id,
    )


def test_page_of_keys_names_where_the_next_one_begins(world: ScmWorld) -> None:
    ids = [world.made_closed().container_id for _ in range(2)]
    with stub(world) as scm:
        request = pb.ListContainerKeysRequest(container_ids=ids, count=1)
        first = scm.ListContainerKeys(request)
        request.start_after = first.next_start_after
        last = scm.ListContainerKeys(request)

    assert [first.next_start_after] == [one.key for one in first.keys]
    assert "" == last.next_start_after != last.keys[0].key


def test_heartbeat_names_the_last_healthy_copies(world: ScmWorld) -> None:
    number = world.made_closed().container_id
    first, *others = sorted(r.datanode_id for r in world.state.replicas.of(number))
    for name in others:
        world.beat(name, replica(name, ReplicaState.UNHEALTHY, container_id=number))
    with stub(world) as scm:
        told = {
            name: list(
                scm.Heartbeat(
                    pb.HeartbeatRequest(datanode_id=name, boot_id=1)
                ).sole_healthy_container_ids
            )
            for name in (first, *others)
        }

    assert {name: [number] if name == first else [] for name in (first, *others)} == told


def test_stop_counts_what_is_doubtful_and_what_is_unreadable_already(world: ScmWorld) -> None:
    """The other datanodes with the container are silent; then all of them are dead."""
    number = world.made_closed().container_id
    name = min(r.datanode_id for r in world.state.replicas.of(number))
    request = pb.CheckStopRequest(datanode_ids=[name])
    with stub(world) as scm:
        world.clock.advance_s(OPTIONS.stale_after_ms // 1000 + 1)
        world.keep_alive(name)
        world.control.tick()
        silent = scm.CheckStop(request)
        world.clock.advance_s(OPTIONS.dead_after_ms // 1000 + 1)
        world.control.tick()
        dead = scm.CheckStop(request)

    assert (0, 1, [number]) == (
        silent.already_unreadable_count,
        silent.doubtful_count,
        list(silent.doubtful_container_ids),
    )
    assert (1, 0) == (dead.already_unreadable_count, dead.doubtful_count)


def test_close_with_force_counts_what_it_gives_up(world: ScmWorld) -> None:
    """The disk with the last commit is gone, and the others closed without it."""
    blocks = world.control.clients.allocate("writer", [1] * 6)
    number = blocks[0].container_id
    first, *others = (one.datanode_id for one in blocks[0].replicas)
    for name, bcsid in ((first, 6), *((name, 5) for name in others)):
        world.beat(
            name,
            replica(name, ReplicaState.OPEN, container_id=number, bcsid=bcsid, root=None),
        )
    world.control.clients.finish("writer", close=True)
    world.beat(first, full=True)
    for name in others:
        world.beat(
            name,
            replica(name, ReplicaState.QUASI_CLOSED, container_id=number),
            full=True,
        )
    with stub(world) as scm:
        request = pb.CloseContainersRequest(container_ids=[number], force=True, dry_run=True)
        [decision] = scm.CloseContainers(request).decisions

    assert ("OK", 1, 6) == (
        decision.code,
        decision.given_up_count,
        decision.given_up[0].bcsid,
    )


def test_reconcile_names_the_holder_that_is_dead(world: ScmWorld) -> None:
    number = world.made_closed(roots=(7, 7, 8)).container_id
    dead, *living = sorted(r.datanode_id for r in world.state.replicas.of(number))
    world.clock.advance_s(OPTIONS.dead_after_ms // 1000 + 1)
    world.keep_alive(*(name for name in MANY if name != dead))
    world.control.tick()
    with stub(world) as scm:
        scm.ReconcileContainers(pb.ReconcileContainersRequest(container_ids=[number]))
        orders = [
            command.reconcile
            for name in living
            for command in scm.Heartbeat(pb.HeartbeatRequest(datanode_id=name, boot_id=1)).commands
        ]

    assert {(dead, True)} == {
        (one.datanode_id, one.is_dead) for order in orders for one in order.holders
    }


def test_datanode_that_kept_its_state_gets_no_order(world: ScmWorld) -> None:
    """The state has an end. A datanode that keeps another end gets the order again. Volumes are
    known as soon as the datanode registers.
    """
    end_ms = 4_000_000_000_000
    disk = VolumeStatus(volume_id="volume-7", path="/disk", capacity_bytes=10)
    with stub(world) as scm:
        scm.SetOperationalStates(
            pb.SetOperationalStatesRequest(
                datanode_ids=["dn1"], op_state="ENTERING_MAINTENANCE", op_expiry_ms=end_ms
            )
        )
        told = pb.HeartbeatRequest(
            datanode_id="dn1", boot_id=1, op_state="ENTERING_MAINTENANCE", op_expiry_ms=end_ms
        )
        kept = scm.Heartbeat(told)
        told.op_expiry_ms -= 1
        wrong = scm.Heartbeat(told)
        scm.Register(
            pb.RegisterRequest(
                datanode_id="dn2",
                address="dn2:9859",
                rack="/rack-1",
                boot_id=2,
                layout_version=LAYOUT_VERSION,
                volumes=[disk],
            )
        )
        nodes = scm.ListNodes(pb.ListNodesRequest()).nodes

    assert [] == list(kept.commands)
    assert [
        pb.SetOperationalStateCommand(op_state="ENTERING_MAINTENANCE", op_expiry_ms=end_ms)
    ] == [one.set_operational_state for one in wrong.commands]
    assert ["set_operational_state"] == [one.WhichOneof("command") for one in wrong.commands]
    assert [["volume-7"]] == [
        [one.volume_id for one in node.volumes] for node in nodes if node.datanode_id == "dn2"
    ]


@pytest.mark.parametrize("kind", ["reports", "column_reports"])
def test_pages_of_two_full_reports_are_not_one_report(world: ScmWorld, kind: str) -> None:
    """The last page of another report removes no replica that it does not name."""
    number = world.made_closed().container_id
    name = min(r.datanode_id for r in world.state.replicas.of(number))
    with stub(world) as scm:
        for report_id, page in ((1, 0), (2, 1)):
            whole = pb.ContainerReport(full=True, report_id=report_id, page=page, last=page > 0)
            one = whole if kind == "reports" else column_report(whole)
            scm.Heartbeat(pb.HeartbeatRequest(datanode_id=name, boot_id=1, **{kind: [one]}))
        before = world.state.replicas.get((number, name))
        whole = pb.ContainerReport(full=True, report_id=3, last=True)
        one = whole if kind == "reports" else column_report(whole)
        scm.Heartbeat(pb.HeartbeatRequest(datanode_id=name, boot_id=1, **{kind: [one]}))

    assert before is not None
    assert world.state.replicas.get((number, name)) is None


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[ScmWorld]:
    """A control plane that was restored, and of which one datanode has not reported."""
    with restored_world(tmp_path / "data") as made:
        yield made


def test_recovery_shows_its_backup_and_who_is_waited_for(restored: ScmWorld) -> None:
    with stub(restored) as scm:
        answer = scm.GetRestoreRecovery(pb.GetRestoreRecoveryRequest())

    assert answer == pb.GetRestoreRecoveryResponse(
        restored=True,
        taken_at_ms=TAKEN_MS - 1,
        missing_datanode_ids=NODES,
        container_ids=answer.container_ids,
    )
    assert 2 in answer.container_ids


def test_recovery_takes_over_what_it_is_told(restored: ScmWorld) -> None:
    """A dry run changes nothing. Datanodes that have not reported must be given up with force."""
    restored.join(*NODES)
    for name in NODES[:2]:
        restored.beat(name, *(replica(name, container_id=one) for one in (1, 2, 9)), full=True)
    known = next(iter(restored.state.keys.values()))
    request = pb.RecoverFromRestoreRequest(dry_run=True)
    request.containers.add(container_id=9, scheme="rs-3-2-64k")
    request.containers.add(
        container_id=1, deleted_local_ids=[block.local_id for block in known.blocks]
    )
    key = request.keys.add(key="found", size=10, created_at_ms=1)
    block = key.blocks.add(length=10)
    block.block_id.container_id, block.block_id.local_id, block.block_id.bcsid = 9, 500, 5
    with stub(restored) as scm:
        shown = scm.RecoverFromRestore(request)
        unchanged = {one.name for one in restored.state.keys.values()}
        request.dry_run = False
        done = scm.RecoverFromRestore(request)
        again = scm.RecoverFromRestore(pb.RecoverFromRestoreRequest(keys=[key]))
        newer = pb.KeyInfo()
        newer.CopyFrom(key)
        newer.blocks[0].block_id.local_id = 600
        renamed = scm.RecoverFromRestore(pb.RecoverFromRestoreRequest(keys=[newer]))
        end = pb.RecoverFromRestoreRequest(finish=True, last_local_id=4 * 10**18)
        with pytest.raises(grpc.RpcError):
            scm.RecoverFromRestore(end)
        end.force = True
        scm.RecoverFromRestore(end)
        restored.control.safe_mode.leave()
        [new] = restored.control.clients.allocate("writer", [10])
        made = restored.state.containers.get(9)

    assert "found" not in unchanged
    assert known.name in unchanged
    assert (
        shown
        == done
        == pb.RecoverFromRestoreResponse(
            adopted_container_ids=[9],
            keys=[pb.RecoveredKey(key="found", code="RECOVERED")],
            deleted_keys=[known.name],
        )
    )
    assert ["KNOWN"] == [one.code for one in again.keys]
    [other] = renamed.keys
    assert other.key == "found"
    assert other.kept_as
    assert made is not None
    assert made.scheme == "rs-3-2-64k"
    assert restored.state.restored is None
    assert new.local_id > end.last_local_id
