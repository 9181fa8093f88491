"""Every field of operators' requests that a control plane in its own process receives, and of the
answers that it sends. The test is the operator and the datanodes.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from suture.wire.v1 import container_pb2
from suture.wire.v1 import scm_pb2 as pb
from tests.support.control.dialled_nodes import DialledNodes
from tests.support.control.fake_datanode import report
from tests.support.control.scm_process import ScmProcess
from tests.support.waiting import wait_until

NODES: Final = ("dn1", "dn2", "dn3", "dn4", "dn5")
OPTIONS: Final = {
    "container_bytes_max": 1024**2,
    "heal": "false",
    "heartbeat_interval_ms": 50,
    "check_interval_ms": 1_000,
    "stale_after_ms": 600_000,
    "dead_after_ms": 1_200_000,
}
WRONG: Final = [1]  # no fingerprint of anything
CLOSED: Final = container_pb2.CLOSED


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DialledNodes]:
    """Five datanodes with room for all."""
    path = tmp_path_factory.mktemp("scm")
    process = ScmProcess.start(path, log_level="error", **OPTIONS)  # type: ignore[arg-type]
    yield DialledNodes(process.address, NODES)
    process.terminate()


def holders(nodes: DialledNodes, number: int) -> list[str]:
    """Return the datanodes that have a replica of a container."""
    asked = pb.GetContainerInfoRequest(container_id=number)
    replicas = nodes.scm.GetContainerInfo(asked).container.replicas
    return sorted(one.datanode.datanode_id for one in replicas)


def pending(nodes: DialledNodes) -> int:
    """Return how many commands wait or run."""
    return len(nodes.scm.ListOutcomes(pb.ListOutcomesRequest(count=1)).pending_command_ids)


def decisions(answer: Any) -> list[pb.ContainerDecision]:
    """Return decisions without their fingerprint, which the test cannot know."""
    for one in answer.decisions:
        assert one.world
        one.world = 0
    return list(answer.decisions)


def test_copy_goes_where_the_operator_says(nodes: DialledNodes) -> None:
    """A dry run shows the order and sends nothing. An order on another state is refused."""
    number = nodes.closed()
    held = holders(nodes, number)
    spare = [name for name in NODES if name not in held]
    ask, before = nodes.scm.ReplicateContainers, pending(nodes)

    for target in spare:
        request = pb.ReplicateContainersRequest(
            container_ids=[number], target_datanode_id=target, dry_run=True
        )
        [shown] = decisions(ask(request))
        [order] = shown.orders
        assert order.datanode_id in held
        assert shown == pb.ContainerDecision(
            container_id=number,
            code="OK",
            orders=[
                pb.Order(
                    type="replicate",
                    datanode_id=order.datanode_id,
                    target_datanode_id=target,
                    bytes=1_000,
                )
            ],
            copies_before=3,
            copies_after=4,
        )
    stale = ask(pb.ReplicateContainersRequest(container_ids=[number], worlds=WRONG))

    assert ["STALE_PLAN"] == [one.code for one in stale.decisions]
    assert all(one.message for one in stale.decisions)
    assert before == pending(nodes)
    [made] = ask(pb.ReplicateContainersRequest(container_ids=[number])).decisions
    assert len(made.command_ids) == 1
    assert pending(nodes) == before + 1


@pytest.mark.parametrize("call", ["ReconcileContainers", "DeleteReplicas", "CloseContainers"])
def test_dry_run_and_changed_state_order_nothing(nodes: DialledNodes, call: str) -> None:
    """The dry run is decided, and nothing is pending. With a wrong fingerprint it is refused."""
    number = nodes.closed()
    named = {"datanode_id": holders(nodes, number)[0]} if call == "DeleteReplicas" else {}
    kind = getattr(pb, f"{call}Request")
    before = pending(nodes)

    shown = getattr(nodes.scm, call)(kind(container_ids=[number], dry_run=True, **named))
    stale = getattr(nodes.scm, call)(kind(container_ids=[number], worlds=WRONG, **named))

    [dry], [refused] = shown.decisions, stale.decisions
    assert (number, number) == (dry.container_id, refused.container_id)
    assert refused.code == "STALE_PLAN"
    assert dry.code == ("OK" if call != "CloseContainers" else dry.code)
    assert before == pending(nodes)


def test_key_is_deleted_once_and_not_by_a_dry_run(nodes: DialledNodes) -> None:
    """Each decision has the size, the version and the transactions."""
    number = nodes.closed()
    key = f"key{number}"
    request = pb.DeleteKeysRequest(keys=[key], dry_run=True)

    [shown] = nodes.scm.DeleteKeys(request).deletions
    [stale] = nodes.scm.DeleteKeys(pb.DeleteKeysRequest(keys=[key], worlds=WRONG)).deletions
    again = nodes.scm.DeleteKeys(request).deletions
    [made] = nodes.scm.DeleteKeys(pb.DeleteKeysRequest(keys=[key], worlds=[shown.world])).deletions

    assert [shown] == list(again)
    assert (key, "OK", 1_000) == (shown.key, shown.code, shown.size)
    assert shown.world
    assert stale.code == "STALE_PLAN"
    assert (made.code, len(made.transaction_ids)) == ("OK", 1)


def test_hold_names_a_replica_until_it_is_released(nodes: DialledNodes) -> None:
    """One replica is held, then none."""
    number = nodes.closed()
    name = holders(nodes, number)[0]
    request = pb.HoldContainersRequest(container_ids=[number], datanode_id=name)

    [decision] = nodes.scm.HoldContainers(request).decisions
    held = [hold for hold in listed_holds(nodes) if hold.container_id == number]
    request.release = True
    nodes.scm.HoldContainers(request)

    assert (number, "OK") == (decision.container_id, decision.code)
    [hold] = held
    assert (name, True) == (hold.datanode_id, hold.since_ms > 0)
    assert number not in [hold.container_id for hold in listed_holds(nodes)]


def listed_holds(nodes: DialledNodes) -> list[pb.Hold]:
    """Return all holds."""
    return list(nodes.scm.ListHolds(pb.ListHoldsRequest()).holds)


@pytest.fixture
def other_nodes(tmp_path: Path) -> Iterator[DialledNodes]:
    """Five datanodes of a control plane of their own, whose states nothing else changes."""
    process = ScmProcess.start(tmp_path, log_level="error", **OPTIONS)  # type: ignore[arg-type]
    yield DialledNodes(process.address, NODES)
    process.terminate()


def test_maintenance_begins_ends_and_is_shown(other_nodes: DialledNodes) -> None:
    """A dry run changes nothing. The departure has its end, its containers and its state."""
    nodes = other_nodes
    number = nodes.closed()
    name = holders(nodes, number)[0]
    end_ms = 4_000_000_000_000
    request = pb.SetOperationalStatesRequest(
        datanode_ids=[name],
        op_state="ENTERING_MAINTENANCE",
        op_expiry_ms=end_ms,
        force=True,
        dry_run=True,
    )

    [decision] = nodes.scm.SetOperationalStates(request).decisions
    assert (name, "OK") == (decision.datanode_id, decision.code)
    assert [] == departures(nodes)
    request.dry_run = False
    nodes.scm.SetOperationalStates(request)
    [order] = nodes.wait_for("set_operational_state", 1).values()
    [departure] = departures(nodes)
    back = pb.SetOperationalStatesRequest(datanode_ids=[name], op_state="IN_SERVICE")
    nodes.scm.SetOperationalStates(back)

    assert order.set_operational_state == pb.SetOperationalStateCommand(
        op_state="ENTERING_MAINTENANCE", op_expiry_ms=end_ms
    )
    assert departure.container_count >= 1
    assert departure.op_state in {"ENTERING_MAINTENANCE", "IN_MAINTENANCE"}
    assert (name, "HEALTHY", end_ms) == (
        *(departure.datanode_id, departure.health, departure.op_expiry_ms),
    )
    wait_until(lambda: departures(nodes) == [])


def departures(nodes: DialledNodes) -> list[pb.Departure]:
    """Return the datanodes that are not in service."""
    return list(nodes.scm.ListDecommissions(pb.ListDecommissionsRequest()).departures)


@pytest.mark.parametrize("kind", ["reregister", "refresh_volume_usage"])
def test_command_to_a_datanode_is_sent(nodes: DialledNodes, kind: str) -> None:
    """The decision names the command."""
    request = pb.CommandNodesRequest(datanode_ids=["dn2"], type=kind)

    [decision] = nodes.scm.CommandNodes(request).decisions

    [(name, command)] = nodes.wait_for(kind, 1).items()
    assert ("dn2", "dn2", "OK") == (name, decision.datanode_id, decision.code)
    assert command.command_id == decision.command_id > 0
    nodes.all["dn2"].heartbeat(
        statuses=(
            pb.CommandStatus(
                command_id=command.command_id, state=pb.CommandStatus.EXECUTED, type=kind
            ),
        )
    )


LISTS: Final[dict[str, Callable[[DialledNodes, list[int]], tuple[Any, Any]]]] = {
    "keys-count": lambda n, _: (
        names(n.scm.ListKeys(pb.ListKeysRequest(prefix="key", count=1)).keys),
        sorted(every_key(n))[:1],
    ),
    "keys-after": lambda n, _: (
        names(n.scm.ListKeys(pb.ListKeysRequest(start_after=sorted(every_key(n))[0])).keys),
        sorted(every_key(n))[1:],
    ),
    "keys-container": lambda n, ids: (
        names(n.scm.ListKeys(pb.ListKeysRequest(container_ids=ids[:1])).keys),
        [f"key{ids[0]}"],
    ),
    "keys-next": lambda n, _: (
        n.scm.ListKeys(pb.ListKeysRequest(count=1)).next_start_after,
        sorted(every_key(n))[0],
    ),
    "container-keys-count": lambda n, ids: (
        names(
            n.scm.ListContainerKeys(pb.ListContainerKeysRequest(container_ids=ids, count=1)).keys
        ),
        [sorted(f"key{number}" for number in ids)[0]],
    ),
    "container-keys-after": lambda n, ids: (
        names(
            n.scm.ListContainerKeys(
                pb.ListContainerKeysRequest(
                    container_ids=ids, start_after=min(f"key{number}" for number in ids)
                )
            ).keys
        ),
        [max(f"key{number}" for number in ids)],
    ),
    "containers-start": lambda n, ids: (
        [
            one.container_id
            for one in n.scm.ListContainerInfos(
                pb.ListContainerInfosRequest(start_container_id=ids[1], count=1)
            ).containers
        ],
        ids[1:2],
    ),
    "containers-next": lambda n, ids: (
        n.scm.ListContainerInfos(
            pb.ListContainerInfosRequest(start_container_id=ids[0], count=1)
        ).next_container_id,
        ids[1],
    ),
}


def names(keys: Any) -> list[str]:
    """Return the names of keys."""
    return [key.key for key in keys]


def every_key(nodes: DialledNodes) -> list[str]:
    """Return the names of all keys."""
    return names(nodes.scm.ListKeys(pb.ListKeysRequest()).keys)


@pytest.fixture(scope="module")
def two_containers(nodes: DialledNodes) -> list[int]:
    """Two closed containers, with a key each."""
    return [nodes.closed(), nodes.closed()]


@pytest.mark.parametrize("name", LISTS)
def test_list_is_what_was_asked_for(
    nodes: DialledNodes, two_containers: list[int], name: str
) -> None:
    """Pages have the asked size, begin where they should, and leave out the rest."""
    got, expected = LISTS[name](nodes, two_containers)

    assert expected == got


def test_heads_of_logs_are_listed_by_volume(nodes: DialledNodes) -> None:
    """A datanode tells the head of its log, and operators ask for one volume or all."""
    node = nodes.all["dn3"]
    checksum = bytes(range(32))
    node.volume_facts = {"log_count": 7, "log_checksum": checksum}
    node.heartbeat()

    def logs(**asked: str) -> list[pb.LogAnchors]:
        return list(nodes.scm.ListAnchors(pb.ListAnchorsRequest(**asked)).logs)

    [log] = logs(datanode_id="dn3", volume_id="volume-1")
    assert ("dn3", "volume-1") == (log.datanode_id, log.volume_id)
    assert [(7, checksum)] == [(one.count, one.checksum) for one in log.anchors]
    assert [] == logs(datanode_id="dn3", volume_id="volume-2")
    assert [] == logs(datanode_id="dn4")


def test_stop_is_judged_by_the_copies_to_keep(nodes: DialledNodes) -> None:
    """Of three copies two stay, which is enough for two and not for three."""
    number = nodes.closed()
    held = holders(nodes, number)

    def asked(count: int, keep: int = 1, **more: Any) -> pb.CheckStopResponse:
        request = pb.CheckStopRequest(datanode_ids=held[:count], keep_count=keep, **more)
        return nodes.scm.CheckStop(request)

    good, bad, last, none = asked(1, 2), asked(1, 3), asked(2), asked(3)

    assert ("YES", "NO", "YES", "NO") == (good.answer, bad.answer, last.answer, none.answer)
    assert good.unreadable_count == last.unreadable_count == 0
    assert last.last_copy_count >= 1
    assert number in none.unreadable_container_ids
    assert len(none.unreadable_container_ids) == none.unreadable_count <= none.container_count
    assert asked(1, for_good=True).has_room


def test_open_containers_and_their_writers_are_counted(nodes: DialledNodes) -> None:
    """A container that is written counts as open, and its client as a writer."""
    before = nodes.scm.CountContainers(pb.CountContainersRequest())
    request = pb.AllocateBlocksRequest(client_id="writer", sizes=[10])
    answer = nodes.scm.AllocateBlocks(request)
    [block] = answer.blocks
    number = block.block_id.container_id
    for place in block.replicas:
        nodes.all[place.datanode_id].report_some(report(number, bcsid=0, block_count=0))

    counts = nodes.scm.CountContainers(pb.CountContainersRequest())
    stop = nodes.scm.CheckStop(
        pb.CheckStopRequest(datanode_ids=[place.datanode_id for place in block.replicas])
    )
    nodes.scm.EndWriteSession(pb.EndWriteSessionRequest(client_id="writer", close=True))

    assert answer.renew_ms > 0
    assert counts.open == before.open + 1
    assert (True, True) == (stop.open_count >= 1, stop.writer_count >= 1)


def test_damage_of_replicas_is_counted(nodes: DialledNodes) -> None:
    """Containers with few replicas, with none, without a tree, and with a contradiction."""
    few, lost, unknown, contradict = (nodes.closed() for _ in range(4))
    before = nodes.scm.CountContainers(pb.CountContainersRequest())
    for number, kept in ((few, 1), (lost, 0)):
        for name in holders(nodes, number)[kept:]:
            gone = container_pb2.ReplicaReport(container_id=number, state=container_pb2.DELETED)
            nodes.all[name].report_some(gone)
    name = holders(nodes, unknown)[0]
    nodes.all[name].report_some(report(unknown, CLOSED, bcsid=1))
    name = holders(nodes, contradict)[0]
    against = report(contradict, CLOSED, bcsid=1, root=7)
    against.contradiction_count = 1
    nodes.all[name].report_some(against)

    def counted() -> tuple[int, ...]:
        now = nodes.scm.CountContainers(pb.CountContainersRequest())
        return tuple(
            getattr(now, field) - getattr(before, field)
            for field in ("few_replicas", "lost", "unknown", "contradict")
        )

    assert counted() == (2, 1, 2, 1)  # one that is lost has few replicas, and none to compare


def test_balancer_runs_as_asked_until_it_is_stopped(other_nodes: DialledNodes) -> None:
    """The answer has the limits of the run and the share of each datanode."""
    nodes = other_nodes
    node = nodes.all["dn5"]
    node.volume_facts = {"used_bytes": node.capacity_bytes * 9 // 10}
    node.heartbeat()
    request = pb.BalanceRequest(threshold_permille=75, iteration_count=3, dry_run=True)

    shown = nodes.scm.Balance(request)
    idle = nodes.scm.Balance(pb.BalanceRequest())
    request.dry_run = False
    started = nodes.scm.Balance(request)
    stopped = nodes.scm.Balance(pb.BalanceRequest(stop=True))

    assert (3, 75) == (started.iteration_count_max, shown.threshold_permille)
    assert (False, True, False) == (idle.running, started.running, stopped.running)
    assert {"dn5": 900} == {
        one.datanode_id: one.used_permille for one in shown.shares if one.datanode_id == "dn5"
    }
    assert stopped.message


def applied(nodes: DialledNodes, *rows: pb.PlanRow, **more: Any) -> list[pb.ContainerDecision]:
    """Let the control plane decide about rows of a plan."""
    request = pb.ApplyPlanRequest(snapshot_id="snapshot", run_id="run", rows=rows, **more)
    return list(nodes.scm.ApplyPlan(request).decisions)


def test_row_of_a_plan_is_checked_against_the_state(nodes: DialledNodes) -> None:
    """The replicas of the row are the present ones, or the row is refused; also after its end, and
    if the state is not that of the dry run.
    """
    number = nodes.closed()
    replicas = [
        pb.PlanReplica(datanode_id=name, state=CLOSED, root=7) for name in holders(nodes, number)
    ]
    row = pb.PlanRow(container_id=number, action="reconcile", replicas=replicas)
    late = pb.PlanRow(container_id=number, action="reconcile", replicas=replicas, expires_at_ms=1)
    before = pending(nodes)

    [shown] = applied(nodes, row, dry_run=True)
    [stale] = applied(nodes, row, worlds=WRONG)
    [expired] = applied(nodes, late, dry_run=True)

    assert before == pending(nodes)
    assert (number, "OK", 3) == (shown.container_id, shown.code, len(shown.orders))
    assert {"reconcile"} == {order.type for order in shown.orders}
    assert ("STALE_PLAN", "STALE_PLAN") == (stale.code, expired.code)
    [made] = applied(nodes, row, worlds=[shown.world])
    assert (made.code, len(made.command_ids)) == ("OK", 3)


def test_row_of_a_plan_names_source_and_copies(nodes: DialledNodes) -> None:
    """One more copy is ordered of the datanode that the row names, unless the control plane was
    quicker.
    """

    def is_first() -> bool:
        number = nodes.closed()
        gone, *left = holders(nodes, number)
        nodes.all[gone].report_some(
            container_pb2.ReplicaReport(container_id=number, state=container_pb2.DELETED)
        )
        found = []
        for source in left:
            row = pb.PlanRow(container_id=number, action="replicate", sources=[source], copies=1)
            [shown] = applied(nodes, row, dry_run=True)
            sources = [order.datanode_id for order in shown.orders]
            found.append((shown.code, shown.copies_before, shown.copies_after, sources))
        return found == [("OK", 2, 3, [source]) for source in left]

    wait_until(is_first)


def test_deletes_are_confirmed_by_what_keys_name(nodes: DialledNodes) -> None:
    """A block is kept while a key names it, and was ordered to be deleted with the key."""
    number = nodes.closed()
    local_ids = nodes.local_ids[number]
    unknown = max(local_ids) + 1_000
    request = pb.ConfirmDeletesRequest(container_id=number, local_ids=[*local_ids, unknown])

    kept = nodes.scm.ConfirmDeletes(request)
    nodes.scm.DeleteKeys(pb.DeleteKeysRequest(keys=[f"key{number}"]))
    ordered = nodes.scm.ConfirmDeletes(request)

    assert pb.ConfirmDeletesResponse(kept_local_ids=local_ids) == kept
    assert pb.ConfirmDeletesResponse(ordered_local_ids=local_ids) == ordered


def test_lost_container_is_marked_and_taken_back(nodes: DialledNodes) -> None:
    """The decision has a fingerprint, and counts the keys. Another state is refused."""
    number = nodes.closed()
    for name in holders(nodes, number):
        gone = container_pb2.ReplicaReport(container_id=number, state=container_pb2.DELETED)
        nodes.all[name].report_some(gone)

    def marked(**more: Any) -> pb.ForgottenContainer:
        request = pb.MarkContainersLostRequest(container_ids=[number], **more)
        [decision] = nodes.scm.MarkContainersLost(request).containers
        return decision

    shown, stale = marked(dry_run=True), marked(worlds=WRONG)
    done = marked(worlds=[shown.world])
    back, again = marked(undo=True), marked(undo=True)

    assert shown.world
    assert (number, "OK", 1) == (shown.container_id, shown.code, shown.key_count)
    assert ["STALE_PLAN", "OK", "OK"] == [one.code for one in (stale, done, back)]
    assert again.code != "OK"


def test_key_that_exists_gets_no_room(nodes: DialledNodes) -> None:
    """The control plane refuses the allocation, because the request names the key."""
    key = f"key{nodes.closed()}"

    with pytest.raises(grpc.RpcError, match="exists"):
        nodes.scm.AllocateBlocks(
            pb.AllocateBlocksRequest(client_id="other", sizes=[10], keys=[key])
        )


def test_close_names_the_last_commit(nodes: DialledNodes) -> None:
    """Each datanode is told the commit up to which its replica must be whole."""
    block = nodes.write()
    number = block.block_id.container_id

    orders = nodes.wait_for("close", 3)

    assert {one.datanode_id for one in block.replicas} == orders.keys()
    assert {(number, block.block_id.bcsid)} == {
        (one.close.container_id, one.close.bcsid) for one in orders.values()
    }
    assert block.block_id.bcsid > 0


def test_report_and_queues_count_what_is_to_be_done(nodes: DialledNodes) -> None:
    """A container with few replicas, one with too many, copies and deletes that are ordered, and
    commands that wait for a heartbeat.
    """
    few, many, copied, doomed = (nodes.closed() for _ in range(4))
    gone = container_pb2.ReplicaReport(container_id=few, state=container_pb2.DELETED)
    nodes.all[holders(nodes, few)[0]].report_some(gone)
    for name in NODES:
        nodes.all[name].report_some(report(many, CLOSED, bcsid=1, root=7))
    held = holders(nodes, doomed)
    before = nodes.scm.GetQueues(pb.GetQueuesRequest())
    nodes.scm.ReplicateContainers(pb.ReplicateContainersRequest(container_ids=[copied]))
    request = pb.DeleteReplicasRequest(container_ids=[many], datanode_id="dn1")
    nodes.scm.DeleteReplicas(request)
    nodes.scm.DeleteKeys(pb.DeleteKeysRequest(keys=[f"key{doomed}"]))
    nodes.scm.CommandNodes(pb.CommandNodesRequest(datanode_ids=held, type="refresh_volume_usage"))

    def conditions() -> dict[str, pb.ConditionSample]:
        found = nodes.scm.GetReport(pb.GetReportRequest())
        return {one.condition: one for one in found.conditions}

    queues = nodes.scm.GetQueues(pb.GetQueuesRequest())
    waiting = {q.datanode_id: {one.type for one in q.waiting} for q in queues.nodes}
    assert all("refresh_volume_usage" in waiting[name] for name in held)
    assert queues.pending_add_count > before.pending_add_count
    assert queues.pending_delete_count > before.pending_delete_count
    assert queues.delete_transaction_count > before.delete_transaction_count
    nodes.ordered("replicate")
    queues = nodes.scm.GetQueues(pb.GetQueuesRequest())
    assert any(one.type == "replicate" for q in queues.nodes for one in q.sent)
    assert any(q.replication_load for q in queues.nodes)
    assert any(q.delete_load for q in queues.nodes)
    wait_until(lambda: {"UNDER_REPLICATED", "OVER_REPLICATED"} <= conditions().keys())
    sample = conditions()["UNDER_REPLICATED"]
    assert few in sample.container_ids
    assert sample.count == len(sample.container_ids)
