"""Handlers of the SCM's commands, and the thread pools that execute them.

- The pool `work` executes replicate, reconstruct and reconcile. The config sets its number of
  threads and the length of its queue.
- The pool `removal` executes delete and delete_blocks in a few threads, so that many deletes do not
  delay other commands.
- The pool `quick` executes close and the commands about the node, which take little time.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import structlog

from agent.commands.block_delete import check_all_done, delete_blocks
from agent.commands.command_queue import TaskLimits
from agent.commands.pool import TaskContext, TaskPool
from agent.commands.rate_ceiling import RateCeiling
from agent.commands.replica_delete import ReplicaDeleter
from agent.commands.routing import CarryOut, Route
from agent.commands.start_rate_limiter import StartRateLimiter
from agent.config.options import TaskConfig
from agent.delete_pins import DeletePins
from agent.leases import ContainerLeases
from agent.plan.actions import ConfirmedDeletes
from agent.plan.reconcile_outcome import ChunkResult
from agent.reconcile.reconciler import Prove, Reconciler
from agent.reconcile.survey import SilentHolder
from agent.reconcile.trust_preview import TrustedChange, fingerprint
from agent.reconstruct.coordinator import ReconstructionCoordinator
from agent.reconstruct.shard_repair import ShardRepairer
from agent.scan.container_scan import ScanReport
from agent.scan.throttle import ScanPace
from agent.services.report_messages import RECONCILE_OUTCOME
from agent.store.replica_store import ReplicaStore
from agent.store.volumes.op_state_file import OP_STATES
from agent.transfer.replicate import TIMEOUT_S, Copy, Replicator
from merkle.replica import BlockId, ContainerId
from scanner.scan_rate_control import PaceLimits
from suture.ec.scheme import SHARDS_MAX, parse_scheme
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.clock import Clock, monotonic_ms
from suture.runtime.memory import UNLIMITED, MemoryBudget
from suture.runtime.ports import Pace, at_once, together
from suture.wire.clients.block_peer import Endpoint, NodeAddress
from suture.wire.clients.peer import Peer
from suture.wire.clients.replica_peer import ShardPeer
from suture.wire.mapping import codec
from suture.wire.mapping.erasure_codec import RECONSTRUCTION, parse_order
from suture.wire.mapping.message_map import MessageMap
from suture.wire.security.tls import LOOPBACK_ONLY, Security
from suture.wire.v1 import datanode_pb2, scm_pb2

OUT_OF_SERVICE_FACTOR: Final = 2  # ozone: hdds.datanode.replication.outofservice.limit.factor
RECONCILE_SHARE: Final = 0.5  # share of the threads, so that replication always gets one
RECONCILE_DEADLINE_S: Final = 6 * 3600  # maximum duration, so that other commands can run
RECONSTRUCT_SHARE: Final = 0.3
STREAMS_PER_VOLUME: Final = 2  # concurrent copies from one volume; a disk serves few streams well
RECONSTRUCT_WEIGHT: Final = 3  # counts as 3 light tasks, because it reads from several datanodes
QUICK_THREADS: Final = 3  # for short commands, so that they never wait for a reconcile
REMOVAL_THREADS: Final = 3
PROOFS_MAX: Final = 2  # deletes that wait for a witness; one thread is left for block deletes
PROOF_TIMEOUT_S: Final = 3600.0
THREADS_DEFAULT: Final = 10  # ozone: hdds.datanode.replication.streams.limit
THREADS_PER_VOLUME: Final = 2
THREADS_DEFAULT_MAX: Final = 64
CONFIRMED_MAX: Final = 65_536  # blocks per query to the control plane
TRUSTED_SHOWN_MAX: Final = 1_000  # changes that a preview lists
RECONCILE_BYTES: Final = 32 * 1024**2  # memory of a reconcile: chunks read ahead, peers' trees
RECONSTRUCT_BYTES: Final = 96 * 1024**2  # memory of a reconstruction: twice the cells read ahead
REPLICATE_BYTES: Final = 8 * 1024**2  # memory of a replication: parts in flight
TRANSFER_THREADS: Final = 4  # threads that read, and threads that write, replicas in transfer

TRUSTED_CHANGE: Final = MessageMap(
    datanode_pb2.TrustedChange, TrustedChange, local_id="block_id", length="length_bytes"
)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDeps:
    """Services of the agent that the handlers use.

    `request_scan` adds a scan to the queue, with a reason. `wait` sleeps for a number of seconds,
    and returns True early if the agent stops. `report_soon` sends a heartbeat now. `reregister`
    registers this datanode again and sends a full report. `confirm_deletes` asks the control plane
    which blocks it ordered to delete, and raises SutureError if this fails. `prove` reads the
    chunks that a reconcile has changed. If `prove` is None, the complete replica is scanned
    instead.
    """

    store: ReplicaStore
    leases: ContainerLeases
    clock: Clock
    scan_now: Callable[[ContainerId], ScanReport]
    confirm_deletes: Callable[[ContainerId, Sequence[BlockId]], scm_pb2.ConfirmDeletesResponse]
    request_scan: Callable[[ContainerId, str], None]
    wait: Callable[[float], bool]
    report_soon: Callable[[], None]
    reregister: Callable[[], None]
    security: Security = LOOPBACK_ONLY
    memory: MemoryBudget = UNLIMITED
    prove: Prove | None = None
    dial: Callable[[NodeAddress, int], ShardPeer] | None = None
    """Function that returns a client for a datanode.

    Its arguments are the address of the datanode and the index of its shard; the index of a
    complete replica is 0. If the function is None, Suture's own protocol is used.
    """
    copy: Copy | None = None
    """Function that copies a replica to another datanode. If it is None, Suture's own protocol is
    used."""
    shared_pace: Callable[[int], Pace] = lambda _floor_bytes_per_s: at_once
    """Function that returns a rate limiter (`Pace`) for background work.

    The rate limiter reduces the rate while clients use the disks. The argument of the function is
    the minimum rate in bytes per second.
    """


def threads_for(volume_count: int) -> int:
    """Return the default number of concurrent tasks on a host with `volume_count` volumes."""
    return min(max(THREADS_DEFAULT, THREADS_PER_VOLUME * volume_count), THREADS_DEFAULT_MAX)


class CommandHandlers:
    """Executes the commands of the SCM.

    At shutdown, call `stop` first, then `close`.
    """

    def __init__(self, config: TaskConfig, tools: HandlerDeps) -> None:
        self._config = config
        self._tools = tools
        self._clock = tools.clock
        self._peers: dict[tuple[str, str], Peer] = {}  # by datanode id and address
        threads = config.threads or threads_for(len(tools.store.volumes()))
        share = max(1, int(threads * RECONCILE_SHARE))
        rebuilds = max(1, int(threads * RECONSTRUCT_SHARE))
        shares = {"reconcile": share, "reconstruct": rebuilds}
        limits = TaskLimits(threads, shares=shares, per_place_max=STREAMS_PER_VOLUME)
        starts = StartRateLimiter(tools.clock)
        self.work = TaskPool(limits, name="task", clock=tools.clock, turnstile=starts)
        self.follow_node_state()
        self.quick = TaskPool(
            TaskLimits(QUICK_THREADS), name="quick", clock=tools.clock, turnstile=starts
        )
        removal = TaskLimits(REMOVAL_THREADS, shares={"delete": PROOFS_MAX})
        self.removal = TaskPool(removal, name="removal", clock=tools.clock, turnstile=starts)
        self._fetchers = ThreadPoolExecutor(2 * share, thread_name_prefix="fetch")
        # Each reconstruction reads the cells of a few stripes ahead while it writes others.
        self._shards = ThreadPoolExecutor(rebuilds * SHARDS_MAX, thread_name_prefix="shard")
        self._readers = ThreadPoolExecutor(TRANSFER_THREADS, thread_name_prefix="export")
        self._copy_ceiling = RateCeiling(tools.clock, tools.wait)
        self._reconcile_ceiling = RateCeiling(tools.clock, tools.wait)
        self._reconciler = Reconciler(
            tools.store,
            tools.leases,
            self._fetchers,
            pace=self._reconcile_ceiling,
            scan=tools.scan_now,
            now_ms=tools.clock.now_ms,
            confirm=self._confirm,
            prove=tools.prove,
        )
        self._mender = ShardRepairer(
            tools.store,
            tools.leases,
            self._shards,
            scan=tools.scan_now,
            now_ms=tools.clock.now_ms,
            pace=self._reconcile_ceiling,
        )
        self.pins = DeletePins(tools.clock)
        self._deletes = ReplicaDeleter(
            store=tools.store,
            leases=tools.leases,
            pins=self.pins,
            clock=tools.clock,
            confirmed=lambda container_id, asked: self._confirm(container_id, asked).ordered,
            age_max_s=config.delete_proof_age_s,
        )
        self._replicator = Replicator(
            store=tools.store,
            leases=tools.leases,
            executor=self._readers,
            monotonic_s=tools.clock.monotonic_s,
            scan=lambda container_id: tools.scan_now(container_id).committed,
            on_damage=tools.request_scan,
            pace=together(self._copy_ceiling, tools.shared_pace(config.copy_floor_bytes_per_s)),
        )

    def limit_rates(self, copy_bytes_per_s: int, reconcile_bytes_per_s: int) -> None:
        """Set the rate limits of copies and reconciles that the control plane requires; 0 means no
        limit."""
        self._copy_ceiling.change(copy_bytes_per_s)
        self._reconcile_ceiling.change(reconcile_bytes_per_s)

    def routes(self) -> dict[str, Route]:
        """Return, for each type of command, the pool and the function that execute it."""
        return {
            "replicate": Route(
                self.work,
                self._within(REPLICATE_BYTES, self._replicate),
                replicate_key,
                place_of=self._source_volume,
            ),
            "reconstruct": Route(
                self.work,
                self._within(RECONSTRUCT_BYTES, self._reconstruct),
                weight=RECONSTRUCT_WEIGHT,
            ),
            "reconcile": Route(self.work, self._within(RECONCILE_BYTES, self._reconcile)),
            "delete": Route(self.removal, self._delete),
            "delete_blocks": Route(self.removal, self._delete_blocks, transactions_key),
            "close": Route(self.quick, self._close),
            "set_operational_state": Route(self.quick, self._set_state, command_key),
            "refresh_volume_usage": Route(self.quick, self._refresh, lambda _: "node"),
            "reregister": Route(self.quick, self._reregister, lambda _: "node"),
        }

    def stop(self, deadline_s: float) -> list[str]:
        """Stop all pools at the same time. Return the names of the pools that did not stop in
        time."""
        ends_at_s = self._clock.monotonic_s() + deadline_s
        pools = {"tasks": self.work, "removals": self.removal, "quick tasks": self.quick}
        for pool in pools.values():
            pool.request_stop()
        unfinished = []
        for name, pool in pools.items():
            if not pool.stop(max(0.0, ends_at_s - self._clock.monotonic_s())):
                unfinished.append(name)
        return unfinished

    def close(self) -> None:
        """End all threads, and close all connections to other datanodes."""
        for executor in (self._fetchers, self._shards, self._readers):
            executor.shutdown(wait=True, cancel_futures=True)
        for peer in self._peers.values():
            peer.close()

    # Handlers of commands.

    def _within(self, size_bytes: int, carry_out: CarryOut) -> CarryOut:
        """Return a handler that reserves `size_bytes` of memory before it calls `carry_out`.

        The memory is reserved from the budget of all tasks. If it is not free, the handler waits.
        """

        def carried_out(
            order: scm_pb2.Command, context: TaskContext, status: scm_pb2.CommandStatus
        ) -> None:
            longest_s = self._time_left_s(context, TIMEOUT_S)
            with self._tools.memory.hold(size_bytes, timeout_s=longest_s, stop=context.stop):
                carry_out(order, context, status)

        return carried_out

    def _close(
        self, order: scm_pb2.Command, _context: TaskContext, _status: scm_pb2.CommandStatus
    ) -> None:
        command = order.close
        container_id = codec.parse_container_id(command.container_id)
        bcsid = codec.parse_bcsid(command.bcsid, "close.bcsid")
        with self._tools.leases.hold(container_id):
            self._tools.store.close_container(container_id, bcsid=bcsid, force=command.force)

    def _delete(
        self, order: scm_pb2.Command, context: TaskContext, _status: scm_pb2.CommandStatus
    ) -> None:
        command = order.delete
        container_id = codec.parse_container_id(command.container_id)
        witnesses = {one.datanode_id: self.peer(one) for one in command.witnesses}
        self._deletes.delete(
            container_id,
            witnesses if self._config.prove_deletes else {},
            force=command.force,
            timeout_s=self._time_left_s(context, PROOF_TIMEOUT_S),
        )

    def _source_volume(self, order: scm_pb2.Command) -> str:
        """Return the id of the volume from which a copy reads. The number of copies per volume is
        limited."""
        return self._tools.store.volume_id(ContainerId(order.replicate.container_id))

    def _delete_blocks(
        self, order: scm_pb2.Command, context: TaskContext, status: scm_pb2.CommandStatus
    ) -> None:
        tools, transactions = self._tools, order.delete_blocks.transactions
        results = delete_blocks(
            tools.store,
            tools.leases,
            transactions,
            stop=context.stop,
            request_scan=tools.request_scan,
        )
        status.delete_blocks.transactions.extend(results)
        check_all_done(results)

    def _set_state(
        self, order: scm_pb2.Command, _context: TaskContext, _status: scm_pb2.CommandStatus
    ) -> None:
        command = order.set_operational_state
        if command.op_state not in OP_STATES:
            raise codec.malformed("set_operational_state.op_state", f"{command.op_state!r}")
        self._tools.store.volume_set.set_node_state(command.op_state, command.op_expiry_ms)
        self.follow_node_state()
        self._tools.report_soon()

    def _refresh(
        self, _order: scm_pb2.Command, _context: TaskContext, _status: scm_pb2.CommandStatus
    ) -> None:
        self._tools.report_soon()  # the heartbeat contains new measurements of the volumes

    def _reregister(
        self, _order: scm_pb2.Command, _context: TaskContext, _status: scm_pb2.CommandStatus
    ) -> None:
        self._tools.reregister()

    def follow_node_state(self) -> None:
        """Set the size of the pool `work` according to the state of this datanode.

        The size is doubled while the datanode is out of service, because all its replicas must then
        be copied to other datanodes.
        """
        is_leaving = self._tools.store.volume_set.node_state().is_out_of_service
        self.work.set_scale(OUT_OF_SERVICE_FACTOR if is_leaving else 1)

    def _reconcile(
        self, order: scm_pb2.Command, context: TaskContext, status: scm_pb2.CommandStatus
    ) -> None:
        command = order.reconcile
        container_id = codec.parse_container_id(command.container_id)
        ends_at_s = self._clock.monotonic_s() + RECONCILE_DEADLINE_S

        def stop() -> bool:
            return context.stop() or self._clock.monotonic_s() >= ends_at_s

        if command.scheme:
            scheme = parse_scheme(command.scheme)
            shards = {peer.datanode_id: self.peer(peer) for peer in command.peers}
            result = self._mender.repair(container_id, scheme, shards, stop=stop)
        elif self._tools.store.replica(container_id).replica_index:
            raise RefusedError(
                Code.MALFORMED_REQUEST,
                f"cannot repair container {container_id} from copies: it is erasure-coded",
                hint="the command must name the erasure code",
            )
        else:
            peers = {peer.datanode_id: self._dialled(peer) for peer in command.peers}
            holders = [parse_holder(holder) for holder in command.holders]
            result = self._reconciler.reconcile(
                container_id,
                peers,
                holders=holders,
                stop=stop,
                is_asked_for=command.asked_for or self._tools.dial is not None,
            )
        outcome = RECONCILE_OUTCOME.message(result)
        status.reconcile.CopyFrom(outcome)
        log.info(
            "replica_reconciled",
            container_id=container_id,
            result=outcome.result,
            chunk_count=outcome.chunk_count,
            fetched_bytes=outcome.bytes_fetched,
            tree_bytes=outcome.tree_bytes_fetched,
            duration_ms=outcome.duration_ms,
            proof=outcome.proof,
        )

    def trust(
        self, request: datanode_pb2.TrustReplicaRequest, stop: Callable[[], bool]
    ) -> datanode_pb2.TrustReplicaResponse:
        """Make the local replica equal to the replica of the peer that the operator trusts.

        In a dry run, only return the changes that this would make. Raise RefusedError(STALE_PLAN)
        if the changes differ from those that the operator has seen (`request.shown`).
        """
        container_id = ContainerId(request.container_id)
        trusted = request.trusted_datanode_id
        if trusted == self._tools.store.datanode_id:
            raise RefusedError(
                Code.WRONG_DATANODE,
                "cannot trust the replica of this datanode: it is the one to repair",
            )
        if self._tools.store.replica(container_id).replica_index:
            raise RefusedError(
                Code.INELIGIBLE,
                f"cannot make the shards of container {container_id} equal: it is erasure-coded",
                hint="delete the wrong shard; it is reconstructed from the others",
            )
        peers = {trusted: self.peer(Endpoint(trusted, request.trusted_address))}
        changes = self._reconciler.preview(container_id, peers, trusted)
        shown = fingerprint(changes)
        response = datanode_pb2.TrustReplicaResponse(
            changes=TRUSTED_CHANGE.messages(changes[:TRUSTED_SHOWN_MAX]),
            change_count=len(changes),
            shown=shown,
        )
        if request.dry_run:
            return response
        if shown != request.shown:
            raise RefusedError(
                Code.STALE_PLAN,
                f"cannot replace data of container {container_id}: it changed since it was shown",
                hint="run the command again with --dry-run",
            )
        result = self._reconciler.reconcile(container_id, peers, trusted=trusted, stop=stop)
        response.result = result.result.value
        response.failed_count = sum(c.result is ChunkResult.FAILED for c in result.chunks)
        return response

    def _confirm(self, container_id: ContainerId, block_ids: Sequence[BlockId]) -> ConfirmedDeletes:
        """Ask the control plane which of these blocks it ordered to delete, and which belong to a
        key.

        If the control plane does not answer, the blocks are in neither of the two sets of the
        result.
        """
        ordered: list[int] = []
        kept: list[int] = []
        try:
            for first in range(0, len(block_ids), CONFIRMED_MAX):
                asked = block_ids[first : first + CONFIRMED_MAX]
                answer = self._tools.confirm_deletes(container_id, asked)
                ordered += answer.ordered_local_ids
                kept += answer.kept_local_ids
        except SutureError as error:
            log.warning("delete_confirmation_failed", container_id=container_id, error=str(error))
        return ConfirmedDeletes(frozenset(map(BlockId, ordered)), frozenset(map(BlockId, kept)))

    def _named_by_keys(
        self, container_id: ContainerId, block_ids: Sequence[BlockId]
    ) -> frozenset[BlockId]:
        """Return those of the given blocks that belong to a key.

        Raise SutureError if the control plane does not answer.
        """
        named: list[int] = []
        for first in range(0, len(block_ids), CONFIRMED_MAX):
            asked = block_ids[first : first + CONFIRMED_MAX]
            named += self._tools.confirm_deletes(container_id, asked).kept_local_ids
        return frozenset(map(BlockId, named))

    def _replicate(
        self, order: scm_pb2.Command, context: TaskContext, status: scm_pb2.CommandStatus
    ) -> None:
        command = order.replicate
        timeout_s = self._time_left_s(context, TIMEOUT_S)
        if self._tools.copy is not None:
            status.replicate.CopyFrom(self._tools.copy(command, context.stop, timeout_s))
            return
        container_id = codec.parse_container_id(command.container_id)
        if not command.target.address:
            raise codec.malformed("replicate.target.address", "is not set")
        outcome = self._replicator.replicate(
            container_id,
            self.peer(command.target),
            stop=context.stop,
            timeout_s=timeout_s,
        )
        status.replicate.CopyFrom(outcome)

    def _time_left_s(self, context: TaskContext, longest_s: float) -> float:
        """Return the number of seconds until the deadline of a command, at least 0.1.

        If the command has no deadline, return `longest_s`.
        """
        if not context.deadline_at_ms:
            return longest_s
        return max((context.deadline_at_ms - monotonic_ms(self._clock)) / 1000, 0.1)

    def _reconstruct(
        self, order: scm_pb2.Command, context: TaskContext, status: scm_pb2.CommandStatus
    ) -> None:
        limits = PaceLimits(fixed_bytes_per_s=self._config.reconstruct_bytes_per_s)
        fixed = ScanPace(limits, self._tools.wait, clock=self._clock)

        def pace(length_bytes: int) -> None:
            self._copy_ceiling(length_bytes, context.stop)
            if limits.fixed_bytes_per_s:
                fixed(length_bytes)

        ordered = parse_order(order.reconstruct)
        coordinator = ReconstructionCoordinator(
            self._shards,
            lambda shard: self._dialled(shard, shard.index),
            now_ms=self._clock.now_ms,
            pace=pace,
            needed=self._named_by_keys if self._tools.dial is None else None,
        )
        result = coordinator.reconstruct(ordered, stop=context.stop)
        for block_id, reason in result.orphans.items():
            log.warning(
                "orphan_block_group_found",
                container_id=order.reconstruct.container_id,
                block_id=block_id,
                reason=reason,
            )
        status.reconstruct.CopyFrom(RECONSTRUCTION.message(result))

    def _dialled(self, datanode: NodeAddress, index: int = 0) -> ShardPeer:
        dial = self._tools.dial
        return self.peer(datanode) if dial is None else dial(datanode, index)

    def peer(self, datanode: NodeAddress) -> Peer:
        """Return the connection to a datanode. The connection is created on the first call."""
        key = datanode.datanode_id, datanode.address
        peer = self._peers.get(key)
        if peer is None:
            fresh = Peer(
                datanode.address, datanode_id=datanode.datanode_id, security=self._tools.security
            )
            peer = self._peers.setdefault(key, fresh)
            if peer is not fresh:
                fresh.close()
        return peer


def parse_holder(message: scm_pb2.KnownHolder) -> SilentHolder:
    """Return an entry of the field `holders` of a reconcile command, after validation.

    The entry describes a datanode that has a replica but cannot be asked now.
    """
    tree = message.tree if message.HasField("tree") else None
    summary = None if tree is None else codec.parse_summary(tree, "reconcile.holders.tree")
    return SilentHolder(message.datanode_id, summary, message.is_empty, message.is_dead)


def transactions_key(order: scm_pb2.Command) -> tuple[int, ...]:
    """Return the transaction ids of a command as its key. Commands with equal keys are
    duplicates."""
    return tuple(item.transaction_id for item in order.delete_blocks.transactions)


def command_key(order: scm_pb2.Command) -> int:
    """Return the command id as the key of the command, so that no command is a duplicate of
    another.

    If several commands of the same type are queued, all of them are executed, and the last one
    takes effect.
    """
    return order.command_id


def replicate_key(order: scm_pb2.Command) -> tuple[int, str]:
    """Return the container id and the target as the key of a copy.

    Therefore, copies of one container to different targets are not duplicates.
    """
    return order.replicate.container_id, order.replicate.target.datanode_id
