"""Simulated datanodes: real gRPC to a real control plane, replicas in dictionaries, no disks.

Each datanode has the queue and the pools of an agent. A command waits, runs for some simulated
time, and takes effect at its end. If its lifetime ends before that, it is dropped or stopped.
`World` judges the commands.
"""

from collections import Counter
from dataclasses import dataclass, field
from math import inf
from typing import Final

from merkle.replica import LAYOUT_VERSION
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tests.support.simulation.simulated_world import World, is_good, replica_report

POOL: Final = 10  # copies, reconstructions and reconciles at once, as in an agent
DELETE_POOL: Final = 5
COPY_S: Final = (20, 90)
DELETE_S: Final = (3, 12)
CAPACITY_BYTES: Final = 40 * 10**12  # unless a script says otherwise
PUSHED: Final = frozenset({"replicate", "reconstruct", "reconcile"})


@dataclass
class Task:
    """A command in a datanode's queue. It is running if `done_at_s` is not None."""

    command: scm_pb2.Command
    kind: str
    container_id: int
    came_at_s: float
    done_at_s: float | None = None

    @property
    def late_at_s(self) -> float:
        """The time at which the command's lifetime ends; inf if it is unlimited."""
        lifetime_ms = self.command.lifetime_ms
        return self.came_at_s + lifetime_ms / 1000 if lifetime_ms else inf

    @property
    def made_count(self) -> int:
        """The number of replicas that the command makes."""
        if self.kind == "reconstruct":
            return len(self.command.reconstruct.targets)
        return int(self.kind == "replicate")


@dataclass
class SimulatedNode:
    """A simulated datanode."""

    world: "World[SimulatedNode]"
    datanode_id: str
    rack: str
    boot_id: int = 1
    is_alive: bool = True
    silent_since_s: float = 0.0  # while it is not alive
    op_state: str = ""
    op_expiry_ms: int = 0
    term: int = 0
    capacity_bytes: int = CAPACITY_BYTES
    used_bytes: int = 0
    replicas: dict[int, container_pb2.ReplicaReport] = field(default_factory=dict)
    tasks: dict[int, Task] = field(default_factory=dict)
    statuses: list[scm_pb2.CommandStatus] = field(default_factory=list)
    changed: dict[int, container_pb2.ReplicaReport] = field(default_factory=dict)

    def put(self, replica: container_pb2.ReplicaReport) -> None:
        """Store a replica, and report it with the next heartbeat."""
        self.used_bytes += replica.used_bytes - self._used_by(replica.container_id)
        self.replicas[replica.container_id] = replica
        self.changed[replica.container_id] = replica
        self.world.holders.setdefault(replica.container_id, set()).add(self.datanode_id)

    def drop(self, container_id: int) -> None:
        """Remove a replica, and report its removal with the next heartbeat."""
        self.used_bytes -= self._used_by(container_id)
        if self.replicas.pop(container_id, None) is not None:
            self.world.holders[container_id].discard(self.datanode_id)
        self.changed[container_id] = container_pb2.ReplicaReport(
            container_id=container_id, state=container_pb2.DELETED
        )

    def register(self) -> None:
        """Register, and report all replicas."""
        self.world.stub.Register(
            scm_pb2.RegisterRequest(
                datanode_id=self.datanode_id,
                address=f"{self.datanode_id}:1",
                rack=self.rack,
                version="0.1.0",
                volumes=self._volumes(),
                boot_id=self.boot_id,
                op_state=self.op_state,
                op_expiry_ms=self.op_expiry_ms,
                layout_version=LAYOUT_VERSION,
            )
        )
        full = scm_pb2.ContainerReport(
            full=True, report_id=self.boot_id, last=True, replicas=self.replicas.values()
        )
        self.changed.clear()
        self._take(self._call([full]))

    def fall_silent(self) -> None:
        """Stop sending heartbeats. The replicas on disk are kept."""
        self.is_alive, self.silent_since_s = False, self.world.now_s
        self.world.note_coming(self)

    def restart(self) -> None:
        """Restart: discard queued and running commands, keep the replicas, and register."""
        self.boot_id += 1
        self.tasks.clear()
        self.statuses.clear()
        self.is_alive = True
        self.register()

    def beat(self) -> None:
        """Finish due tasks, begin tasks that may begin, send a heartbeat, and queue the commands in
        the answer."""
        self._work()
        if self.world.is_lost():
            return  # the call is lost; the next heartbeat reports everything again
        changed = list(self.changed.values())
        statuses = list(self.statuses)
        response = self._call(
            [scm_pb2.ContainerReport(replicas=changed)] if changed else [], statuses
        )
        if self.world.is_lost():
            return  # the answer is lost, with the commands in it
        if response.reregister:  # the control plane applied nothing of the call
            self.register()
            return
        self.changed.clear()
        self.statuses.clear()
        self._take(response)

    def queues(self) -> Counter[str]:
        """Return the number of queued and running commands by type, without those of LOW
        priority."""
        return Counter(
            task.kind for task in self.tasks.values() if task.command.priority != scm_pb2.LOW
        )

    def _used_by(self, container_id: int) -> int:
        known = self.replicas.get(container_id)
        return 0 if known is None else known.used_bytes

    def _volumes(self) -> list[datanode_pb2.VolumeStatus]:
        return [
            datanode_pb2.VolumeStatus(
                volume_id="v",
                path="/v",
                capacity_bytes=self.capacity_bytes,
                available_bytes=self.capacity_bytes - self.used_bytes,
                used_bytes=self.used_bytes,
            )
        ]

    def _call(
        self,
        reports: list[scm_pb2.ContainerReport],
        statuses: list[scm_pb2.CommandStatus] | None = None,
    ) -> scm_pb2.HeartbeatResponse:
        self.world.counts["heartbeats"] += 1
        response: scm_pb2.HeartbeatResponse = self.world.stub.Heartbeat(
            scm_pb2.HeartbeatRequest(
                datanode_id=self.datanode_id,
                boot_id=self.boot_id,
                volumes=self._volumes(),
                reports=reports,
                command_statuses=statuses or [],
                queues=[
                    scm_pb2.QueueCount(type=kind, count=count)
                    for kind, count in sorted(self.queues().items())
                ],
                op_state=self.op_state,
                op_expiry_ms=self.op_expiry_ms,
            )
        )
        return response

    def _take(self, response: scm_pb2.HeartbeatResponse) -> None:
        if response.term > self.term:
            self.term = response.term
            for task in list(self.tasks.values()):
                if task.done_at_s is None:  # of a control plane that is not any more
                    self._end(task, scm_pb2.CommandStatus.SKIPPED, "STALE_TERM")
        for command in response.commands:
            kind = command.WhichOneof("command")
            inner = getattr(command, kind)
            container_id = getattr(inner, "container_id", 0)
            task = Task(command, kind, container_id, self.world.now_s)
            self.world.judge_order(self, command, kind)
            if command.command_id in self.tasks:
                continue
            self.tasks[command.command_id] = task
            if kind == "set_operational_state":
                self.op_state, self.op_expiry_ms = inner.op_state, inner.op_expiry_ms
        self.world.judge_load(self)
        self._begin(self.world.now_s)

    def _work(self) -> None:
        """Finish the tasks that were due since the last call, in the order of their times, and
        begin waiting tasks."""
        while (task := self._next_done()) is not None:
            assert task.done_at_s is not None
            is_late = task.done_at_s >= task.late_at_s
            self._end(task, *(self._failed("CANCELLED") if is_late else self._execute(task)))
            self._begin(task.done_at_s)
        self._begin(self.world.now_s)

    def _next_done(self) -> Task | None:
        done = [
            (task.done_at_s, number)
            for number, task in self.tasks.items()
            if task.done_at_s is not None and task.done_at_s <= self.world.now_s
        ]
        return self.tasks[min(done)[1]] if done else None

    def _begin(self, at_s: float) -> None:
        """Begin the tasks that may begin at `at_s`; drop the tasks whose lifetime is over."""
        running = Counter(
            task.kind in PUSHED for task in self.tasks.values() if task.done_at_s is not None
        )
        waiting = [task for task in self.tasks.values() if task.done_at_s is None]
        for task in sorted(waiting, key=lambda t: t.command.priority == scm_pb2.LOW):
            is_pushed = task.kind in PUSHED
            if at_s >= task.late_at_s:
                self._end(task, scm_pb2.CommandStatus.SKIPPED, "DEADLINE_PASSED")
            elif task.kind not in PUSHED | {"delete"}:
                self._end(task, *self._execute(task))
            elif running[is_pushed] < (POOL if is_pushed else DELETE_POOL):
                running[is_pushed] += 1
                took_s = self.world.chance.randint(*(COPY_S if is_pushed else DELETE_S))
                task.done_at_s = min(at_s + took_s, task.late_at_s)

    def _end(self, task: Task, state: scm_pb2.CommandStatus.State, code: str) -> None:
        self.tasks.pop(task.command.command_id, None)
        self.statuses.append(
            scm_pb2.CommandStatus(
                command_id=task.command.command_id,
                state=state,
                type=task.kind,
                container_id=task.container_id,
                code=code,
            )
        )

    def _execute(self, task: Task) -> tuple[scm_pb2.CommandStatus.State, str]:
        done = scm_pb2.CommandStatus.EXECUTED, ""
        match task.kind:
            case "close":
                return (
                    done if self._close(task.command.close) else self._failed("CONTAINER_NOT_FOUND")
                )
            case "replicate":
                return done if self._copy(task.command.replicate) else self._failed("UNAVAILABLE")
            case "reconstruct":
                is_done = self._reconstruct(task.command.reconstruct)
                return done if is_done else self._failed("UNAVAILABLE")
            case "delete":
                if task.container_id not in self.replicas:
                    return self._failed("CONTAINER_NOT_FOUND")
                self._delete(task.command.delete)
        return done

    def _failed(self, code: str) -> tuple[scm_pb2.CommandStatus.State, str]:
        return scm_pb2.CommandStatus.FAILED, code

    def _close(self, command: scm_pb2.CloseCommand) -> bool:
        known = self.replicas.get(command.container_id)
        if known is None:
            return False
        is_whole = command.force or known.bcsid >= command.bcsid
        self.put(
            replica_report(
                command.container_id,
                state=container_pb2.CLOSED if is_whole else container_pb2.QUASI_CLOSED,
                index=known.replica_index,
                used_bytes=known.used_bytes,
                bcsid=known.bcsid,
            )
        )
        return True

    def _copy(self, command: scm_pb2.ReplicateCommand) -> bool:
        target = self.world.nodes[command.target.datanode_id]
        mine = self.replicas.get(command.container_id)
        if mine is None or not target.is_alive or command.container_id in target.replicas:
            return False
        target.put(mine)
        return True

    def _reconstruct(self, command: scm_pb2.ReconstructCommand) -> bool:
        sources = {
            shard.replica_index
            for shard in command.sources
            for node in [self.world.nodes[shard.datanode.datanode_id]]
            for replica in [node.replicas.get(command.container_id)]
            if node.is_alive and replica and is_good(replica)
            if replica.replica_index == shard.replica_index
        }
        targets = [
            (self.world.nodes[s.datanode.datanode_id], s.replica_index) for s in command.targets
        ]
        if len(sources) < command.scheme.data or not all(
            node.is_alive and command.container_id not in node.replicas for node, _ in targets
        ):
            return False
        for node, index in targets:
            node.put(replica_report(command.container_id, index=index))
        return True

    def _delete(self, command: scm_pb2.DeleteCommand) -> None:
        mine = self.replicas[command.container_id]
        if not command.force and not mine.is_empty:
            return
        self.world.judge_removal(self, command.container_id)
        self.drop(command.container_id)
