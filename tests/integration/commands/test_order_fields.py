"""What an order says, read off the connection between two real processes, and what it changes."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.json_format import ParseDict

from merkle.replica import LAYOUT_VERSION, ContainerId
from suture.wire.mapping.rpc_services import Stub
from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.command_line import CommandLine
from tests.support.control.dialled_nodes import DialledNodes as Nodes
from tests.support.control.fake_datanode import report
from tests.support.control.scm_process import ScmProcess
from tests.support.control.scripted_scm import ScriptedScm
from tests.support.faults.victim import Victim, write_config
from tests.support.storage.three_replicas import ThreeReplicas
from tests.support.waiting import wait_until

CLOSED = container_pb2.CLOSED
CONTAINER = ContainerId(7)
NODES = ("dn1", "dn2", "dn3", "dn4")
SHARD_NODES = (*NODES, "dn5", "dn6")
OPTIONS = {
    "container_bytes_max": 1024**2,
    "heal": "false",
    "command_deadline_ms": 120_000,
    "heartbeat_interval_ms": 50,
    "stale_after_ms": 1_000,
    "dead_after_ms": 4_000,
}
OTHER: Final = "00000000-0000-4000-8000-00000000000b"
TREE: Final = container_pb2.TreeSummary(
    algorithm=container_pb2.TREE_XXH3_64, root=0x1112_1314_1516_1718, generation=5, block_count=6
)
REPLICA: Final = container_pb2.ReplicaReport(container_id=21, state=CLOSED, tree=TREE)
DELETED: Final = scm_pb2.DeleteTransactionResult(
    transaction_id=31,
    container_id=32,
    done=False,
    block_count=33,
    bytes_freed=34,
    code="IO_EXCEPTION",
    message="cannot delete it",
)
OUTCOMES: Final[dict[str, Any]] = {
    "reconcile": scm_pb2.ReconcileOutcome(
        container_id=41,
        result="partial",
        peers=[
            scm_pb2.PeerOutcome(
                datanode_id=OTHER,
                state="bad_data",
                message="chunk 0 does not match",
                tree_bytes=42,
                data_bytes=43,
                chunks=44,
            )
        ],
        chunks=[
            scm_pb2.ChunkOutcome(
                local_id=45,
                offset=46,
                length=47,
                difference="CHUNK_MISSING",
                result="failed",
                source=OTHER,
                message="no peer has it",
            )
        ],
        chunk_count=48,
        bytes_fetched=49,
        tree_bytes_fetched=50,
        tree_before=TREE,
        tree_after=TREE,
        state_before=container_pb2.UNHEALTHY,
        state_after=container_pb2.CLOSED,
        duration_ms=51,
        differences={"CHUNK_MISSING": 52},
        proof="changed",
    ),
    "replicate": scm_pb2.ReplicateOutcome(
        result="imported",
        bytes_sent=61,
        block_count=62,
        damaged_chunk_count=63,
        duration_ms=64,
        replica=REPLICA,
    ),
    "delete_blocks": scm_pb2.DeleteBlocksOutcome(transactions=[DELETED]),
    "reconstruct": scm_pb2.ReconstructOutcome(
        bytes_read=71,
        bytes_written=72,
        block_count=73,
        orphan_count=2,
        orphan_local_ids=[74, 75],
        replaced_sources=[OTHER],
        duration_ms=76,
    ),
}
ORDERS: Final[dict[str, Callable[[Stub, int], Any]]] = {
    "reconcile": lambda scm, number: scm.ReconcileContainers(
        scm_pb2.ReconcileContainersRequest(container_ids=[number])
    ),
    "replicate": lambda scm, number: scm.ReplicateContainers(
        scm_pb2.ReplicateContainersRequest(container_ids=[number])
    ),
    "delete_blocks": lambda scm, number: scm.DeleteKeys(
        scm_pb2.DeleteKeysRequest(keys=[f"key{number}"])
    ),
    "reconstruct": lambda *_: None,  # it is ordered for a shard that is gone
}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Four datanodes of one control plane."""
    process = ScmProcess.start(tmp_path / "scm", log_level="error", **OPTIONS)  # type: ignore[arg-type]
    yield Nodes(process.address, NODES)
    process.terminate()


def test_a_delete_names_those_that_must_prove_what_it_removes(nodes: Nodes) -> None:
    """
    All that have the same, with their addresses; it is as urgent as others, and ends at a time.
    """
    number = nodes.closed()
    for name in NODES:
        nodes.all[name].report_some(report(number, CLOSED, bcsid=1, root=7))

    [(name, order)] = nodes.wait_for("delete", 1).items()

    witnesses = {one.datanode_id: one.address for one in order.delete.witnesses}
    assert {n: nodes.all[n].address for n in NODES if n != name} == witnesses
    assert (number, True) == (order.delete.container_id, order.delete.force)
    assert (scm_pb2.NORMAL, 60_000) == (order.priority, order.lifetime_ms)
    assert order.command_id > 0
    assert order.term > 0


def test_blocks_without_a_known_commit_are_to_be_kept(nodes: Nodes) -> None:
    """No client deleted them: such a block was allocated, and not committed before its container
    closed.
    """
    request = scm_pb2.AllocateBlocksRequest(client_id="client", sizes=[1_000])
    [block] = nodes.scm.AllocateBlocks(request).blocks
    number = nodes.closed()

    found = nodes.wait_for("delete_blocks", 3)

    for order in found.values():
        [transaction] = order.delete_blocks.transactions
        assert (number, True) == (transaction.container_id, transaction.keep)
        assert [block.block_id.local_id] == list(transaction.local_ids)


@pytest.mark.parametrize("call", ["register", "heartbeat"])
def test_state_that_a_datanode_saw_beyond_ours_stops_all_deletes(nodes: Nodes, call: str) -> None:
    """
    Each answer shows the start and the number of the state, which a datanode repeats in its calls.
    """
    node = nodes.all["dn1"]
    before = node.heartbeat()
    nodes.closed()
    shown = node.heartbeat()
    assert before.start_id
    assert before.start_id == shown.start_id
    assert 0 < before.state_number < shown.state_number
    assert not nodes.scm.SafeMode(scm_pb2.SafeModeRequest()).on
    seen = [
        scm_pb2.SeenStart(
            start_id=shown.start_id, term=shown.term, state_number=shown.state_number + 1_000
        )
    ]

    if call == "register":
        node.stub.Register(
            scm_pb2.RegisterRequest(
                datanode_id="dn1",
                address=node.address,
                volumes=node.volumes(),
                boot_id=node.boot_id,
                layout_version=LAYOUT_VERSION,
                seen_starts=seen,
            )
        )
    else:
        node.stub.Heartbeat(
            scm_pb2.HeartbeatRequest(
                datanode_id="dn1", boot_id=node.boot_id, volumes=node.volumes(), seen_starts=seen
            )
        )

    assert nodes.scm.SafeMode(scm_pb2.SafeModeRequest()).on
    reasons = nodes.scm.CountContainers(scm_pb2.CountContainersRequest()).reasons
    assert f"number {shown.state_number + 1_000} in term {shown.term}" in " ".join(reasons)


def test_a_reconcile_names_the_holders_that_cannot_be_asked(nodes: Nodes) -> None:
    """The order has the last report of each holder, which is its tree or that it is empty, and
    whether its datanode is dead.
    """
    number = nodes.closed()
    for name, root in (("dn1", 7), ("dn2", 9), ("dn3", 7)):
        nodes.all[name].report_some(report(number, CLOSED, bcsid=1, root=root))
    empty = report(number, CLOSED, bcsid=1, block_count=0)
    empty.is_empty = True
    nodes.all["dn4"].report_some(empty)

    def told(state: str) -> dict[str, scm_pb2.KnownHolder]:
        def is_so() -> bool:
            for name in ("dn1", "dn2"):
                nodes.all[name].heartbeat()
            listed = nodes.scm.ListNodes(scm_pb2.ListNodesRequest()).nodes
            return {n.health for n in listed if n.datanode_id in {"dn3", "dn4"}} == {state}

        wait_until(is_so)
        request = scm_pb2.ReconcileContainersRequest(container_ids=[number])
        [decision] = nodes.scm.ReconcileContainers(request).decisions
        assert decision.code == "OK", decision
        orders = nodes.wait_for("reconcile", 2, "dn3", "dn4")
        assert {"dn1", "dn2"} == orders.keys()
        assert ["dn2"] == [peer.datanode_id for peer in orders["dn1"].reconcile.peers]
        assert ["192.0.2.2:9859"] == [peer.address for peer in orders["dn1"].reconcile.peers]
        return {one.datanode_id: one for one in orders["dn1"].reconcile.holders}

    stale = told("STALE")

    assert {"dn3", "dn4"} == stale.keys()
    assert (7, container_pb2.TREE_XXH3_64) == (stale["dn3"].tree.root, stale["dn3"].tree.algorithm)
    assert (False, True) == (stale["dn3"].is_empty, stale["dn4"].is_empty)
    assert not stale["dn4"].HasField("tree")
    assert {False} == {one.is_dead for one in stale.values()}


@pytest.fixture
def cluster_of_six(tmp_path: Path) -> Iterator[Nodes]:
    """Six datanodes of a control plane that heals at once."""
    options = OPTIONS | {"heal": "true", "stale_after_ms": 60_000, "dead_after_ms": 120_000}
    process = ScmProcess.start(tmp_path, log_level="error", **options)  # type: ignore[arg-type]
    yield Nodes(process.address, SHARD_NODES)
    process.terminate()


def endpoint(nodes: Nodes, name: str) -> container_pb2.DatanodeEndpoint:
    """Return the id and the address of a datanode."""
    return container_pb2.DatanodeEndpoint(datanode_id=name, address=nodes.all[name].address)


def expected_order(nodes: Nodes, kind: str, number: int, name: str, order: Any) -> Any:
    """Return what the order to a datanode must be, as far as its ids are known."""
    info = nodes.scm.GetContainerInfo(scm_pb2.GetContainerInfoRequest(container_id=number))
    held = {one.datanode.datanode_id: one.replica for one in info.container.replicas}
    if kind == "reconcile":
        peers = [endpoint(nodes, one) for one in sorted(held.keys() - {name})]
        order.peers.sort(key=lambda peer: str(peer.datanode_id))
        return scm_pb2.ReconcileCommand(container_id=number, peers=peers, asked_for=True)
    if kind == "replicate":
        [target] = {order.target.datanode_id} - held.keys()
        return scm_pb2.ReplicateCommand(container_id=number, target=endpoint(nodes, target))
    if kind == "delete_blocks":
        [transaction] = order.transactions
        local_ids = nodes.local_ids[number]
        assert transaction.transaction_id > 0
        return scm_pb2.DeleteBlocksCommand(
            transactions=[
                scm_pb2.DeleteTransaction(
                    transaction_id=transaction.transaction_id,
                    container_id=number,
                    local_ids=local_ids,
                )
            ]
        )
    [target] = order.targets
    assert target.datanode.datanode_id not in held
    order.sources.sort(key=lambda shard: int(shard.replica_index))
    places = {replica.replica_index: one for one, replica in held.items()}
    return scm_pb2.ReconstructCommand(
        container_id=number,
        scheme=scm_pb2.EcScheme(codec="rs", data=3, parity=2, cell_bytes=65_536),
        sources=[
            scm_pb2.EcShard(datanode=endpoint(nodes, places[index]), replica_index=index)
            for index in sorted(places)
        ],
        targets=[
            scm_pb2.EcShard(
                datanode=endpoint(nodes, target.datanode.datanode_id),
                replica_index=({*range(1, 6)} - places.keys()).pop(),
            )
        ],
    )


def containers_of(command: scm_pb2.Command) -> set[int]:
    """Return the ids of the containers that an order is about."""
    order = getattr(command, str(command.WhichOneof("command")))
    parts = getattr(order, "transactions", [order])
    return {part.container_id for part in parts}


@pytest.mark.parametrize("kind", ORDERS)
def test_an_order_is_whole_and_its_outcome_is_shown(
    cluster_of_six: Nodes, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Every field of the order is as expected. `suture history --commands` shows every field of
    the answer.
    """
    nodes = cluster_of_six
    number = nodes.closed("rs-3-2-64k" if kind == "reconstruct" else "")
    if kind == "reconstruct":
        holder = next(name for name in nodes.all if number in nodes.all[name].replicas)
        gone = container_pb2.ReplicaReport(container_id=number, state=container_pb2.DELETED)
        nodes.all[holder].report_some(gone)
    ORDERS[kind](nodes.scm, number)
    found: dict[str, scm_pb2.Command] = {}

    def is_ordered() -> bool:
        orders = nodes.ordered(kind).items()
        found.update({one: sent for one, sent in orders if number in containers_of(sent)})
        return bool(found)

    wait_until(is_ordered)
    name, command = sorted(found.items())[0]
    order = getattr(command, kind)
    assert expected_order(nodes, kind, number, name, order) == order
    told = scm_pb2.CommandStatus(
        command_id=command.command_id,
        state=scm_pb2.CommandStatus.FAILED,
        type=kind,
        container_id=number,
        code="BUSY",
        message=f"cannot do {kind}",
        **{kind: OUTCOMES[kind]},
    )
    began_ms = time.time() * 1000

    nodes.all[name].heartbeat(statuses=(told,))

    document = CommandLine(nodes.address, capsys).json("history", "--commands", "--count", "100")
    found = [ParseDict(one, scm_pb2.Outcome()) for one in document["outcomes"]]
    [outcome] = [one for one in found if one.status.command_id == command.command_id]
    assert (name, told) == (outcome.datanode_id, outcome.status)
    assert began_ms - 1_000 <= outcome.reported_at_ms <= time.time() * 1000 + 1_000


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[[], tuple[ScriptedScm, ThreeReplicas]]]:
    """An agent with a whole replica, and two peers that have the same."""
    with ScriptedScm() as scm, ThreeReplicas(tmp_path, CONTAINER) as three:
        three.copy(three.whole_volume(), tmp_path / "volume")
        config = write_config(tmp_path / "agent.toml", tmp_path / "volume", scm.address)
        with Victim(tmp_path / "agent.log") as victim:
            victim.start(config)
            yield lambda: (scm, three)
            victim.stop()


def test_a_replica_is_kept_where_no_witness_proves_it(
    agent: Callable[[], tuple[ScriptedScm, ThreeReplicas]],
) -> None:
    """
    The one that the order names does not answer. One that answers with the same does.
    """
    scm, three = agent()
    delete = scm_pb2.DeleteCommand(container_id=CONTAINER, force=True)
    nobody = container_pb2.DatanodeEndpoint(datanode_id="gone", address="127.0.0.1:1")
    delete.witnesses.append(nobody)
    scm.order(scm_pb2.Command(command_id=1, term=1, delete=delete))
    refused = scm.wait_for(1)
    delete.witnesses.extend(three.peers)
    scm.order(scm_pb2.Command(command_id=2, term=1, delete=delete))
    done = scm.wait_for(2)

    assert refused is not None
    assert done is not None
    assert (scm_pb2.CommandStatus.FAILED, "NOT_PROVEN") == (refused.state, refused.code)
    assert scm_pb2.CommandStatus.EXECUTED == done.state, done


def test_an_order_whose_time_is_over_is_skipped(
    agent: Callable[[], tuple[ScriptedScm, ThreeReplicas]],
) -> None:
    """Many orders have a deadline of one millisecond, and the last come too late. Orders without
    a deadline are never late.
    """
    scm, _ = agent()
    deletes = [
        scm_pb2.Command(
            command_id=number,
            term=1,
            lifetime_ms=1,
            delete=scm_pb2.DeleteCommand(container_id=1_000 + number),
        )
        for number in range(1, 201)
    ]
    scm.order_all(deletes)

    assert scm.wait_until(lambda: len(scm.statuses) == 200)
    assert scm_pb2.CommandStatus.SKIPPED in {status.state for status in scm.statuses.values()}


def test_low_orders_wait_for_others(
    agent: Callable[[], tuple[ScriptedScm, ThreeReplicas]],
) -> None:
    """LOW commands arrive first and are executed last, except those that had begun."""
    scm, _ = agent()
    copies = [
        scm_pb2.Command(
            command_id=number,
            term=1,
            priority=scm_pb2.LOW if number <= 60 else scm_pb2.NORMAL,
            replicate=scm_pb2.ReplicateCommand(
                container_id=CONTAINER,
                target=container_pb2.DatanodeEndpoint(
                    datanode_id=f"gone{number}", address="127.0.0.1:1"
                ),
            ),
        )
        for number in range(1, 101)
    ]
    scm.order_all(copies)

    assert scm.wait_until(lambda: len(scm.statuses) == 100)
    assert all(number <= 60 for number in [*scm.statuses][-20:])


def test_blocks_that_are_to_be_kept_go_to_quarantine(
    agent: Callable[[], tuple[ScriptedScm, ThreeReplicas]], tmp_path: Path
) -> None:
    """
    Others are gone when they are deleted.
    """
    scm, _ = agent()
    transactions = [
        scm_pb2.DeleteTransaction(
            transaction_id=number, container_id=CONTAINER, local_ids=[number], keep=number == 1
        )
        for number in (1, 2)
    ]
    command = scm_pb2.DeleteBlocksCommand(transactions=transactions)
    scm.order(scm_pb2.Command(command_id=1, term=1, delete_blocks=command))

    done = scm.wait_for(1)

    assert done is not None
    assert [1, 1] == [result.block_count for result in done.delete_blocks.transactions]
    kept = {path.name.split("-")[1] for path in (tmp_path / "volume").rglob("quarantine/*.bytes")}
    assert {"1"} == kept
