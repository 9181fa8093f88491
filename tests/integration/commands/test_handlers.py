"""What a command's pool does for it: shares, weights, streams of a disk, and more while leaving."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from agent.commands import handlers as module
from agent.commands.command_queue import Task
from agent.commands.handlers import CommandHandlers, HandlerDeps, threads_for
from agent.commands.pool import TaskContext
from agent.config.options import TaskConfig
from agent.plan.reconcile_outcome import (
    ChunkOutcome,
    ChunkResult,
    ReadBack,
    ReconcileResult,
    ReconcileVerdict,
)
from agent.reconcile.reconciler import Reconciler
from agent.reconcile.trust_preview import fingerprint
from agent.scan.container_scan import scan_container
from agent.services.limits import DatanodeServerLimits
from agent.services.server import build_server
from agent.services.trust_handlers import TrustHandlers
from merkle.replica import BlockId, ContainerId
from suture.ec.rebuild_task import ShardLocation
from suture.ec.scheme import CodecName, Scheme
from suture.errors import Code, RefusedError
from suture.runtime.clock import Clock, SystemClock
from suture.runtime.ports import Pace, at_once
from suture.wire.clients.peer import Peer
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tests.support.clock import FakeClock
from tests.support.gate import Gate
from tests.support.idle import wait_idle
from tests.support.storage.datanodes import Datanode
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.ec_cluster import ec_cluster, groups_of
from tests.support.storage.stored_replica import CONTAINER, StoredReplica

RS_3_2 = Scheme(CodecName.RS, 3, 2, 4096)
WAIT_S = 10.0
THREADS = 4


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """A store with one closed container."""
    made = StoredReplica(tmp_path / "volume")
    made.create(blocks=1)
    yield made
    made.close()


@contextmanager
def handling(
    replica: StoredReplica, config: TaskConfig, clock: Clock, **more: Any
) -> Iterator[CommandHandlers]:
    """Build the handlers of an agent, and end them."""
    tools = HandlerDeps(
        store=replica.store,
        leases=replica.leases,
        clock=clock,
        scan_now=lambda container_id: scan_container(replica.tools, container_id),
        request_scan=lambda *_: None,
        wait=lambda _: False,
        report_soon=lambda: None,
        reregister=lambda: None,
        **{"confirm_deletes": lambda *_: scm_pb2.ConfirmDeletesResponse(), **more},
    )
    made = CommandHandlers(config, tools)
    yield made
    assert [] == made.stop(WAIT_S)
    made.close()


@pytest.fixture
def handlers(replica: StoredReplica) -> Iterator[CommandHandlers]:
    """The handlers of an agent with four threads."""
    with handling(replica, TaskConfig(threads=THREADS), SystemClock()) as made:
        yield made


def test_copies_have_a_pace_beside_clients(replica: StoredReplica) -> None:
    """
    Its floor is the config's, and all copies share it.
    """
    floors: list[int] = []

    def shared_pace(floor_bytes_per_s: int) -> Pace:
        floors.append(floor_bytes_per_s)
        return at_once

    with handling(
        replica,
        TaskConfig(copy_floor_bytes_per_s=7 * 1024**2),
        SystemClock(),
        shared_pace=shared_pace,
    ):
        assert [7 * 1024**2] == floors


def tasks_of(handlers: CommandHandlers, kind: str, orders: list[scm_pb2.Command]) -> list[Task]:
    """Return the tasks that these orders become."""
    route = handlers.routes()[kind]
    return [
        Task(kind, number, weight=route.weight, place=route.place_of(order))
        for number, order in enumerate(orders)
    ]


def running_at_once(handlers: CommandHandlers, tasks: list[Task], count: int) -> int:
    """Submit tasks that wait; return how many of them run together, `count` or more."""
    gate = Gate()
    for task in tasks:
        assert handlers.work.submit(task, gate.body) is None
    for _ in range(count):
        assert gate.entered.acquire(timeout=WAIT_S)
    gate.go_on.set()
    assert wait_idle(handlers.work, WAIT_S)
    return gate.running_max


def running_before_another(handlers: CommandHandlers, tasks: list[Task]) -> int:
    """Return how many of these tasks run when one that came after them may run beside them."""
    gate, other = Gate(), Gate()
    for task in tasks:
        assert handlers.work.submit(task, gate.body) is None
    assert handlers.work.submit(Task("other", 0), other.body) is None
    assert other.entered.acquire(timeout=WAIT_S)
    running = handlers.work.running_count() - 1  # without the other
    gate.go_on.set()
    other.go_on.set()
    assert wait_idle(handlers.work, WAIT_S)
    return running


def decide(handlers: CommandHandlers, op_state: str) -> None:
    """Have the control plane's word on this datanode carried out."""
    order = scm_pb2.Command(
        set_operational_state=scm_pb2.SetOperationalStateCommand(op_state=op_state)
    )
    context = TaskContext(lambda: False, 0)
    handlers.routes()["set_operational_state"].carry_out(order, context, scm_pb2.CommandStatus())


def test_a_datanode_that_leaves_works_on_twice_as_much(handlers: CommandHandlers) -> None:
    """
    From the word of the control plane on until the word that it is back.
    """
    tasks = [Task("other", number) for number in range(4 * THREADS)]

    before = running_at_once(handlers, tasks, THREADS)
    decide(handlers, "DECOMMISSIONING")
    leaving = running_at_once(handlers, tasks, 2 * THREADS)
    decide(handlers, "IN_SERVICE")
    after = running_at_once(handlers, tasks, THREADS)

    assert [THREADS, 2 * THREADS, THREADS] == [before, leaving, after]


@pytest.mark.parametrize(
    ("disks", "threads"), [(1, 10), (5, 10), (6, 12), (12, 24), (32, 64), (60, 64)]
)
def test_more_disks_do_more_at_once(disks: int, threads: int) -> None:
    """
    Two tasks a disk, as disks are what they wait for; ten at least, and no more than 64.
    """
    assert threads == threads_for(disks)


@pytest.mark.parametrize(("kind", "most"), [("reconcile", 2), ("reconstruct", 1)])
def test_a_share_is_all_that_reconcile_and_reconstruct_get(
    handlers: CommandHandlers, kind: str, most: int
) -> None:
    """
    Half of the threads, and a third: copies of what is missing always find one.
    """
    tasks = tasks_of(handlers, kind, [scm_pb2.Command()] * THREADS)

    assert most == running_before_another(handlers, tasks)


def test_a_reconstruction_weighs_three(handlers: CommandHandlers) -> None:
    """A reconstruction reads from several datanodes, so it leaves one of four threads free."""
    [heavy] = tasks_of(handlers, "reconstruct", [scm_pb2.Command()])
    light = [Task("other", number) for number in range(THREADS)]

    assert 2 == running_at_once(handlers, [heavy, *light], 2)


def test_a_disk_is_read_by_two_copies_at_once(handlers: CommandHandlers) -> None:
    """
    Their sources lie on one volume; copies of what is not here are not held up by it.
    """
    orders = [
        scm_pb2.Command(
            replicate=scm_pb2.ReplicateCommand(
                container_id=CONTAINER,
                target=container_pb2.DatanodeEndpoint(datanode_id=f"dn-{number}"),
            )
        )
        for number in range(THREADS - 1)
    ]

    assert 2 == running_before_another(handlers, tasks_of(handlers, "replicate", orders))


@pytest.mark.parametrize("is_named", [False, True])
def test_a_reconstruction_asks_which_blocks_keys_name(
    replica: StoredReplica, tmp_path: Path, is_named: bool
) -> None:
    """An abandoned block that too few sources have is left out. A block that a key names is not."""
    rest = groups_of(RS_3_2, [9_000, 9_000])
    del rest[2]
    asked: list[tuple[int, list[int]]] = []

    def confirm(
        container_id: ContainerId, block_ids: Sequence[BlockId]
    ) -> scm_pb2.ConfirmDeletesResponse:
        asked.append((container_id, list(block_ids)))
        return scm_pb2.ConfirmDeletesResponse(kept_local_ids=block_ids if is_named else ())

    with (
        ec_cluster(
            tmp_path / "ec", RS_3_2, [9_000, 9_000], instead=dict.fromkeys((3, 4, 5), rest)
        ) as cluster,
        handling(replica, TaskConfig(), SystemClock(), confirm_deletes=confirm) as handlers,
    ):
        cluster.serve()
        order = cluster.order([1])
        message = scm_pb2.Command(
            reconstruct=scm_pb2.ReconstructCommand(
                container_id=order.container_id,
                scheme=scm_pb2.EcScheme(codec="rs", data=3, parity=2, cell_bytes=4096),
                sources=map(shard_message, order.sources),
                targets=map(shard_message, order.targets),
            )
        )
        status = scm_pb2.CommandStatus()
        carry_out = handlers.routes()["reconstruct"].carry_out
        expected = (
            pytest.raises(RefusedError, match="belongs to a key") if is_named else nullcontext()
        )
        with expected:
            carry_out(message, TaskContext(lambda: False, 0), status)

        assert [(order.container_id, [2])] == asked
        left_out = [] if is_named else [2]
        assert left_out == list(status.reconstruct.orphan_local_ids)


def shard_message(shard: ShardLocation) -> scm_pb2.EcShard:
    """Return a shard as a command names it."""
    endpoint = container_pb2.DatanodeEndpoint(datanode_id=shard.datanode_id, address=shard.address)
    return scm_pb2.EcShard(datanode=endpoint, replica_index=shard.index)


class Hasty(FakeClock):
    """A clock by which every look at it takes a second."""

    def monotonic_s(self) -> float:
        """Let a second pass."""
        self.advance_s(1)
        return super().monotonic_s()


@pytest.mark.parametrize(("deadline_s", "result"), [(2, "interrupted"), (3600, "converged")])
def test_a_reconcile_ends_between_two_chunks_when_its_time_is_over(
    replica: StoredReplica,
    tmp_path: Path,
    deadline_s: int,
    result: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This datanode limits the duration, whatever the control plane permits."""
    peer = Datanode("dn-2", tmp_path / "peer")
    peer.replica.create(blocks=1)
    peer.serve()
    replica.flip(1, 100)
    replica.scan(CONTAINER)
    endpoint = container_pb2.DatanodeEndpoint(datanode_id="dn-2", address=peer.address)
    order = scm_pb2.Command(
        reconcile=scm_pb2.ReconcileCommand(container_id=CONTAINER, peers=[endpoint])
    )
    status = scm_pb2.CommandStatus()
    monkeypatch.setattr(module, "RECONCILE_DEADLINE_S", deadline_s)

    with handling(replica, TaskConfig(threads=1), Hasty()) as handlers:
        handlers.routes()["reconcile"].carry_out(order, TaskContext(lambda: False, 0), status)
    peer.close()

    assert result == status.reconcile.result


def test_reconcile_that_an_operator_asked_for_is_never_refused_by_a_count(
    replica: StoredReplica, tmp_path: Path
) -> None:
    """
    The disk has the old bytes again after every repair, so the agent gives up by itself.
    """
    peer = Datanode("dn-2", tmp_path / "peer")
    peer.replica.create(blocks=1)
    peer.serve()
    endpoint = container_pb2.DatanodeEndpoint(datanode_id="dn-2", address=peer.address)

    def lose_the_write(*_: object) -> ReadBack:
        replica.flip(1, 100)
        replica.scan(CONTAINER)
        return ReadBack.WHOLE

    def result(*, asked_for: bool) -> str:
        command = scm_pb2.ReconcileCommand(
            container_id=CONTAINER, peers=[endpoint], asked_for=asked_for
        )
        order, status = scm_pb2.Command(reconcile=command), scm_pb2.CommandStatus()
        route.carry_out(order, TaskContext(lambda: False, 0), status)
        return status.reconcile.result

    lose_the_write()
    with handling(replica, TaskConfig(threads=1), SystemClock(), prove=lose_the_write) as handlers:
        route = handlers.routes()["reconcile"]
        results = [result(asked_for=asked_for) for asked_for in (False, False, False, True)]
    peer.close()

    assert ["partial", "partial", "non_convergent", "partial"] == results


class TestTrust:
    @pytest.fixture
    def other(self, tmp_path: Path) -> Iterator[Datanode]:
        """A peer that has other bytes in block 1, under a row that fits them."""
        made = Datanode("dn-other", tmp_path / "other")
        made.replica.store.create_container(CONTAINER)
        made.replica.put(1, 5_000)
        made.replica.store.close_container(CONTAINER, bcsid=0, force=True)
        made.serve()
        yield made
        made.close()

    def wish(self, other: Datanode, **more: object) -> datanode_pb2.TrustReplicaRequest:
        """Return an operator's wish to trust the peer."""
        return datanode_pb2.TrustReplicaRequest(
            container_id=CONTAINER,
            trusted_datanode_id=other.datanode_id,
            trusted_address=other.address,
            **more,  # type: ignore[arg-type]
        )

    def test_trust_replaces_the_blocks_shown_by_the_dry_run(
        self, handlers: CommandHandlers, replica: StoredReplica, other: Datanode
    ) -> None:
        """The dry run changes nothing. The order makes the changes that the dry run showed."""
        remove_blocks(other.replica.store, CONTAINER, [BlockId(1)])

        shown = handlers.trust(self.wish(other, dry_run=True), lambda: False)
        between = replica.file(1).exists()
        handlers.trust(self.wish(other, shown=shown.shown), lambda: False)

        assert [(1, "delete")] == [(one.local_id, one.change) for one in shown.changes]
        assert (True, False) == (between, replica.file(1).exists())

    def test_trust_refuses_changes_that_the_dry_run_did_not_show(
        self, handlers: CommandHandlers, replica: StoredReplica, other: Datanode
    ) -> None:
        """The replicas may have changed since the operator saw the dry run."""
        shown = handlers.trust(self.wish(other, dry_run=True), lambda: False)
        remove_blocks(other.replica.store, CONTAINER, [BlockId(1)])

        with pytest.raises(RefusedError, match="changed since it was shown") as refused:
            handlers.trust(self.wish(other, shown=shown.shown), lambda: False)

        assert Code.STALE_PLAN is refused.value.code
        assert replica.file(1).exists()


def test_copy_for_another_datanode_at_the_target_address_is_refused(
    handlers: CommandHandlers, tmp_path: Path
) -> None:
    """A reinstalled host has a new id at its old address: the SCM would count the old one."""
    with closing(Datanode("dn-new", tmp_path / "target")) as target:
        target.serve()
        endpoint = container_pb2.DatanodeEndpoint(datanode_id="dn-old", address=target.address)
        order = scm_pb2.ReplicateCommand(container_id=CONTAINER, target=endpoint)
        carry_out = handlers.routes()["replicate"].carry_out

        with pytest.raises(RefusedError) as refused:
            carry_out(
                scm_pb2.Command(replicate=order),
                TaskContext(lambda: False, 0),
                scm_pb2.CommandStatus(),
            )

        assert Code.WRONG_DATANODE is refused.value.code
        assert [] == list(target.replica.store.replica_ids())


def test_trust_counts_the_chunks_that_it_could_not_install(
    replica: StoredReplica, handlers: CommandHandlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator is told the result and how many failed."""
    chunks = [
        ChunkOutcome(BlockId(1), 0, 10, "MISSING_BLOCK", result)
        for result in (ChunkResult.FAILED, ChunkResult.REPAIRED, ChunkResult.FAILED)
    ]
    result = ReconcileResult(CONTAINER, ReconcileVerdict.PARTIAL, chunks=tuple(chunks))
    monkeypatch.setattr(Reconciler, "preview", lambda *_: [])
    monkeypatch.setattr(Reconciler, "reconcile", lambda *_, **__: result)
    request = datanode_pb2.TrustReplicaRequest(
        container_id=CONTAINER,
        trusted_datanode_id="dn2",
        trusted_address="127.0.0.1:1",
        shown=fingerprint([]),
    )
    with ThreadPoolExecutor(2) as executor:
        built = build_server(
            [TrustHandlers(handlers.trust)],
            "127.0.0.1:0",
            executor,
            datanode_id=replica.store.datanode_id,
            limits=DatanodeServerLimits(),
        )
        built.server.start()
        with Peer(f"127.0.0.1:{built.port}") as peer:
            answer = peer.stub.TrustReplica(request)
        built.server.stop(0).wait()

    assert answer == datanode_pb2.TrustReplicaResponse(
        shown=request.shown, result="partial", failed_count=2
    )
