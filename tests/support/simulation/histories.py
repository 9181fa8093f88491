"""Histories of many containers in one simulated cluster, and a judge of their final states.

Containers are written, and committed or not. During a day there are deaths, lost disks, damage,
deletes, departures and restarts. Then each container is judged. For a container that has not
reached a final state, the documented commands of an operator are sent one after another. If none of
them leads to a final state, the container is stuck.

The control plane is a real process whose clock the script moves. Every command is sent through its
gRPC server. The simulated datanodes know the blocks of their replicas (`history_nodes.py`). The
same seed gives the same history.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc

from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.simulation.history_nodes import (
    BLOCK_BYTES,
    TREE_STATES,
    Held,
    HistoryNode,
    replica_at,
)
from tests.support.simulation.simulated_days import HOUR_S, Days
from tests.support.simulation.simulated_nodes import SimulatedNode

DAY_S: Final = 24 * HOUR_S
ROUNDS: Final = 8  # rounds of writes and other events
ROUND_STEPS: Final = 10
STEP_S: Final = 60.0
NIGHT_STEP_S: Final = 290.0
NODES_MIN: Final = 7  # nodes that always remain in service, so that repairs are possible
REMEDY_S: Final = HOUR_S  # time for the effect of a command
SCHEME: Final = "rs-3-2-1024k"
NAMED_MAX: Final = 5
HAPPENINGS: Final = (
    *("die", "die", "three die", "return", "return empty", "disk", "damage", "ruin"),
    *("delete", "delete", "leave", "remove", "rejoin", "restart", "loss"),
)
"""Events that may happen in a round. Each is a method of `Histories`."""


@dataclass
class Verdict:
    """The final states of a cluster's containers."""

    counts: Counter[str] = field(default_factory=Counter)  # their states after the day
    remedies: Counter[str] = field(default_factory=Counter)  # commands given afterwards
    stuck: list[str] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def add(self, other: "Verdict") -> None:
        """Add the verdict about another cluster."""
        self.counts += other.counts
        self.remedies += other.remedies
        self.events += other.events
        self.stuck += other.stuck
        self.broken += other.broken


class Histories(Days):
    """A cluster in which containers are written while events happen to its nodes."""

    def start(self) -> None:
        """Start the cluster with empty nodes."""
        container_count, self.container_count = self.container_count, 0
        super().start()
        self.container_count = container_count
        self.verdict = Verdict()
        self._written = 0
        self._keys: list[str] = []

    def live(self) -> Verdict:
        """Simulate a day, and judge every container; return the verdict."""
        for number in range(ROUNDS):
            self._write(self.container_count * (number + 1) // ROUNDS - self._written)
            self._happen()
            for _ in range(ROUND_STEPS):
                self.step(STEP_S)
        self.world.loss_percent = 0
        self.pass_time(DAY_S - self.world.now_s, NIGHT_STEP_S)
        self._judge()
        self.verdict.broken = self.world.broken
        return self.verdict

    def make_node(self, name: str, rack: str) -> SimulatedNode:
        """Return a node that knows its blocks."""
        return HistoryNode(self.world, name, rack)

    # Events.

    def _write(self, count: int) -> None:
        chance = self.world.chance
        for _ in range(count):
            self._written += 1
            client_id = f"writer-{self._written}"
            scheme = SCHEME if chance.randrange(100) < 15 else ""
            sizes = [BLOCK_BYTES] * chance.randint(1, 3)
            try:
                blocks = self.world.stub.AllocateBlocks(
                    scm_pb2.AllocateBlocksRequest(client_id=client_id, sizes=sizes, scheme=scheme)
                ).blocks
            except grpc.RpcError:
                self.verdict.events["no room to write"] += 1
                continue
            self._store(client_id, list(blocks), is_coded=bool(scheme))
            draw = chance.randrange(100)
            if draw < 80:  # their writers continue without the other nodes
                request = scm_pb2.EndWriteSessionRequest(client_id=client_id, close=draw < 60)
                self.world.stub.EndWriteSession(request)

    def _store(
        self, client_id: str, blocks: list[scm_pb2.BlockAllocation], *, is_coded: bool
    ) -> None:
        """Write and commit blocks. At random, leave out the commit, the write, or one replica."""
        chance = self.world.chance
        fate = chance.choice(["whole"] * 7 + ["one misses", "not committed", "not written"])
        self.verdict.events[f"written: {fate}"] += 1
        missing: list[scm_pb2.FailedReplica] = []
        for number, block in enumerate(blocks):
            container_id = block.block_id.container_id
            names = [endpoint.datanode_id for endpoint in block.replicas]
            absent = {name for name in names if not self.world.nodes[name].is_alive}
            if fate == "one misses" and number == len(blocks) - 1:
                absent.add(chance.choice(names))
            if fate == "not committed":
                absent.update(chance.sample(names, chance.randint(0, len(names) - 1)))
            if fate == "not written":
                absent.update(names)
            missing += [
                scm_pb2.FailedReplica(container_id=container_id, datanode_id=name)
                for name in sorted(absent)
            ]
            for index, name in enumerate(names, start=1):
                node = self.world.nodes[name]
                if name not in absent and isinstance(node, HistoryNode):
                    index = index if is_coded else 0
                    node.write(
                        container_id, block.block_id.local_id, block.block_id.bcsid, index=index
                    )
        if fate in {"not committed", "not written"}:
            return
        self._commit(client_id, blocks, missing)

    def _commit(
        self,
        client_id: str,
        blocks: list[scm_pb2.BlockAllocation],
        missing: list[scm_pb2.FailedReplica],
    ) -> None:
        name = f"key-{self._written}"
        places = [
            scm_pb2.BlockLocation(block_id=block.block_id, length=BLOCK_BYTES) for block in blocks
        ]
        info = scm_pb2.KeyInfo(key=name, size=BLOCK_BYTES * len(blocks), blocks=places)
        request = scm_pb2.CommitKeyRequest(client_id=client_id, keys=[info], failed=missing)
        try:
            self.world.stub.CommitKey(request)
            self._keys.append(name)
        except grpc.RpcError as error:
            self.verdict.events[f"commit refused: {error.code().name}"] += 1

    def _happen(self) -> None:
        for _ in range(2):
            what = self.world.chance.choice(HAPPENINGS)
            if getattr(self, "_" + what.replace(" ", "_"))():
                self.verdict.events[what] += 1

    def _serving(self) -> list[str]:
        found = self.departures()
        return [node.datanode_id for node in self.living() if node.datanode_id not in found]

    def _dead(self) -> list[str]:
        return [name for name, node in self.world.nodes.items() if not node.is_alive]

    def _die(self, count: int = 1) -> bool:
        serving = self._serving()
        if len(serving) < NODES_MIN + count:
            return False
        self.kill(self.world.chance.sample(serving, count))
        return True

    def _three_die(self) -> bool:
        return self._die(3)

    def _return(self) -> bool:
        dead = self._dead()
        if dead:
            self.revive([self.world.chance.choice(dead)])
        return bool(dead)

    def _return_empty(self) -> bool:
        dead = self._dead()
        if dead:
            node = self.world.nodes[self.world.chance.choice(dead)]
            for container_id in list(node.replicas):
                node.drop(container_id)
            node.restart()
        return bool(dead)

    def _disk(self) -> bool:
        """Remove a quarter of the replicas of a living node; return whether it had any."""
        node = self.world.nodes[self.world.chance.choice(self._serving())]
        ids = sorted(node.replicas)
        for container_id in self.world.chance.sample(ids, len(ids) // 4):
            node.drop(container_id)
        return bool(ids)

    def _damage(self) -> bool:
        return self._spoil(percent=5, is_everywhere=False)

    def _ruin(self) -> bool:
        return self._spoil(percent=1, is_everywhere=True)

    def _spoil(self, *, percent: int, is_everywhere: bool) -> bool:
        for container_id, names in sorted(self.world.holders.items()):
            if not names or self.world.chance.randrange(100) >= percent:
                continue
            chosen = sorted(names) if is_everywhere else [self.world.chance.choice(sorted(names))]
            for name in chosen:
                node = self.world.nodes[name]
                if not isinstance(node, HistoryNode) or not node.is_alive:
                    continue
                held = node.held(container_id)
                if held is not None and held.state in TREE_STATES:
                    held.state = container_pb2.UNHEALTHY
                    node.hold(container_id, held)
        return True

    def _delete(self) -> bool:
        names = self.world.chance.sample(self._keys, len(self._keys) // 4)
        self._keys = [name for name in self._keys if name not in set(names)]
        if names:
            self.world.stub.DeleteKeys(scm_pb2.DeleteKeysRequest(keys=names))
        return bool(names)

    def _leave(self) -> bool:
        serving = self._serving()
        candidates = self._dead() + (serving if len(serving) > NODES_MIN else [])
        known = {n.datanode_id for n in self._nodes()}
        candidates = [name for name in candidates if name in known]
        if candidates:
            self._set_state(self.world.chance.choice(candidates), "DECOMMISSIONING")
        return bool(candidates)

    def _rejoin(self) -> bool:
        left = sorted(self.departures())
        if left:
            self._set_state(self.world.chance.choice(left), "IN_SERVICE")
        return bool(left)

    def _set_state(self, name: str, op_state: str) -> None:
        request = scm_pb2.SetOperationalStatesRequest(
            datanode_ids=[name], op_state=op_state, force=True
        )
        self.world.stub.SetOperationalStates(request)

    def _remove(self) -> bool:
        dead = [n.datanode_id for n in self._nodes() if n.health == "DEAD"]
        if dead:
            request = scm_pb2.RemoveNodesRequest(
                datanode_ids=[self.world.chance.choice(dead)], force=True
            )
            self.world.stub.RemoveNodes(request)
        return bool(dead)

    def _restart(self) -> bool:
        self.kill_scm()
        return True

    def _loss(self) -> bool:
        self.world.loss_percent = 0 if self.world.loss_percent else 3
        return True

    def _nodes(self) -> list[scm_pb2.NodeInfo]:
        return list(self.world.stub.ListNodes(scm_pb2.ListNodesRequest()).nodes)

    # Final states.

    def _judge(self) -> None:
        """Count the states of containers. Then send the documented commands for containers with a
        problem until all containers have reached a final state."""
        troubles = self._troubles()
        self.verdict.counts.update(troubles.values())
        self.verdict.counts["settled"] += sum(1 for _ in self._infos()) - len(troubles)
        tried: dict[int, list[str]] = {}
        for _ in range(_REMEDY_ROUNDS):
            if not troubles and not self._owed():
                return
            if self.world.stub.SafeMode(scm_pb2.SafeModeRequest()).on:
                # So many nodes died before a restart that an operator must end safe mode.
                self.world.stub.SafeMode(scm_pb2.SafeModeRequest(leave=True))
                self.verdict.remedies["safemode --leave"] += 1
                self.pass_time(REMEDY_S, STEP_S)
                troubles = self._troubles()
            for node in [n for n in self._nodes() if n.health == "DEAD"]:
                request = scm_pb2.RemoveNodesRequest(datanode_ids=[node.datanode_id], force=True)
                self.world.stub.RemoveNodes(request)
                self.verdict.remedies["remove-node"] += 1
            for container_id, trouble in sorted(troubles.items()):
                self._remedy(container_id, trouble, tried.setdefault(container_id, []))
            self.pass_time(REMEDY_S, STEP_S)
            troubles = self._troubles()
        for container_id, trouble in sorted(troubles.items()):
            self.verdict.stuck.append(
                f"seed {self.seed}, container {container_id}: {trouble}; tried "
                f"{', '.join(tried.get(container_id, []))}; {self._shown(container_id)}"
            )
        if self._owed():
            self.verdict.stuck.append(f"seed {self.seed}: {self._owed()} deletes are owed for ever")

    def _owed(self) -> int:
        return int(self.queues().delete_transaction_count)

    def _shown(self, container_id: int) -> str:
        names = sorted(self.world.holders.get(container_id, ()))
        found = []
        for name in names:
            node = self.world.nodes[name]
            held = node.held(container_id) if isinstance(node, HistoryNode) else None
            if held is not None:
                state = container_pb2.ReplicaState.Name(held.state)
                found.append(
                    f"{name}{'' if node.is_alive else ' (dead)'} {node.op_state} {state} "
                    f"#{held.index} bcsid {held.bcsid} {len(held.live)}+{len(held.deleted)}"
                )
        return "; ".join(found) or "nobody has it"

    def _remedy(self, container_id: int, trouble: str, tried: list[str]) -> None:
        """Send the next documented command for a container's problem that is not in `tried`."""
        for command in _REMEDIES.get(trouble, ()):
            if command in tried:
                continue
            tried.append(command)
            self.verdict.remedies[command] += 1
            ids = [container_id]
            stub = self.world.stub
            match command:
                case "close":
                    stub.CloseContainers(scm_pb2.CloseContainersRequest(container_ids=ids))
                case "reconcile":
                    stub.ReconcileContainers(scm_pb2.ReconcileContainersRequest(container_ids=ids))
                case "close --force":
                    request = scm_pb2.CloseContainersRequest(container_ids=ids, force=True)
                    stub.CloseContainers(request)
                case "mark-lost":
                    stub.MarkContainersLost(scm_pb2.MarkContainersLostRequest(container_ids=ids))
                case "delete":
                    for name in self._needless(container_id):
                        stub.DeleteReplicas(
                            scm_pb2.DeleteReplicasRequest(container_ids=ids, datanode_id=name)
                        )
                case "rm":
                    names = self._keys_in(container_id)
                    if names:
                        stub.DeleteKeys(scm_pb2.DeleteKeysRequest(keys=names))
            return

    def _needless(self, container_id: int) -> list[str]:
        """Return the datanodes whose shard of a container an operator may remove, because the shard
        is not closed, or because another datanode has a closed shard of the same index."""
        names = sorted(self.world.holders.get(container_id, ()))
        held = {name: found for name in names if (found := self._at(name, container_id))}
        needless = [name for name, found in held.items() if found.state != container_pb2.CLOSED]
        seen: set[int] = set()
        for name, found in held.items():
            if name not in needless and found.index in seen:
                needless.append(name)
            seen.add(found.index if found.state == container_pb2.CLOSED else -1)
        return needless

    def _at(self, name: str, container_id: int) -> Held | None:
        return replica_at(self.world.nodes[name], name, container_id)

    def _keys_in(self, container_id: int) -> list[str]:
        found = self.world.stub.ListKeys(scm_pb2.ListKeysRequest(count=1_000)).keys
        return [
            key.key
            for key in found
            if any(block.block_id.container_id == container_id for block in key.blocks)
        ]

    def _infos(self) -> Iterator[scm_pb2.ContainerInfo]:
        start = 1
        while start:
            page = self.world.stub.ListContainerInfos(
                scm_pb2.ListContainerInfosRequest(start_container_id=start, count=1_000)
            )
            yield from page.containers
            start = page.next_container_id

    def _troubles(self) -> dict[int, str]:
        """Return the problem of each container that has not reached a final state, by id."""
        leaving = self.departures()
        return {
            info.container_id: trouble
            for info in self._infos()
            if (trouble := self._trouble(info, leaving))
        }

    def _trouble(self, info: scm_pb2.ContainerInfo, leaving: dict[str, str]) -> str:
        """Return the name of a container's problem, judged by the nodes' data; "" if there is
        none."""
        held = {
            name: found
            for name in self.world.holders.get(info.container_id, ())
            for found in [replica_at(self.world.nodes[name], name, info.container_id)]
            if found is not None
        }
        if info.state == "MARKED_LOST":
            return ""
        if info.state == "DELETED":
            return "DELETED, and not gone" if held else ""
        if not held:
            return "MISSING"
        if info.state != "CLOSED":
            return str(info.state)
        serving = [found for name, found in held.items() if name not in leaving]
        good = [found for found in serving if found.state == container_pb2.CLOSED]
        if not good and all(found.state == container_pb2.UNHEALTHY for found in held.values()):
            return "UNHEALTHY"
        if info.scheme:
            indexes = Counter(found.index for found in good)
            is_short = len({found.index for found in held.values()}) < 3
            if set(indexes) != {1, 2, 3, 4, 5}:
                return "MISSING" if is_short else "SHARDS LACK"
            return "" if len(serving) == info.replication_factor else "SURPLUS"
        roots = {(frozenset(found.live), frozenset(found.deleted)) for found in good}
        if len(roots) > 1 or len(good) != len(serving):
            return "DIFFERENT"
        if not any(found.live for found in held.values()):
            return "EMPTY"
        return "" if len(good) == info.replication_factor else "UNDER OR OVER_REPLICATED"


_REMEDIES: Final = {
    "OPEN": ("close", "close --force"),
    "CLOSING": ("close", "close --force"),
    "QUASI_CLOSED": ("close --force", "rm", "mark-lost"),
    "DIFFERENT": ("reconcile", "rm"),
    "SHARDS LACK": ("reconcile", "close --force", "rm", "mark-lost"),
    "SURPLUS": ("reconcile", "delete"),
    "UNHEALTHY": ("reconcile", "rm", "mark-lost"),
    "MISSING": ("mark-lost",),
    "UNDER OR OVER_REPLICATED": ("reconcile",),
}
"""By problem of a container: the commands that docs/operations names for it, in the order in which
they are tried. For other problems, docs/operations names no command."""
_REMEDY_ROUNDS: Final = 5


def cluster(path: Path, seed: int, container_count: int, node_count: int = 12) -> Verdict:
    """Simulate a day of one cluster; return the verdict on its containers."""
    histories = Histories(path, seed, node_count, 4, container_count, slices=3)
    with histories.running():
        return histories.live()
