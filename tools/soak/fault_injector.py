"""Injects the faults of the soak test, one at a time. Each is undone before the next.

Damage of data is the exception: it remains until the cluster has found and repaired it. Always the
same replica of a container is damaged, so that the other replicas have the intact bytes.
"""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from suture.errors import SutureError, UnavailableError
from suture.wire.v1 import scm_pb2
from tools.demo.damage import (
    Damage,
    Target,
    append_garbage,
    delete_block_file,
    flip_bit_under_warm_cache,
    truncate,
    zero_page,
)
from tools.demo.damage_choice import damageable_blocks, replica_root, target_of
from tools.demo.stage import is_whole
from tools.soak.disks import NoLoopDevices
from tools.soak.site import SPARED, Site

WAYS: Final = (
    flip_bit_under_warm_cache,
    zero_page,
    truncate,
    delete_block_file,
    append_garbage,
)
WEIGHTS: Final = {
    "damage": 5,
    "kill agent": 3,
    "power cut": 3,
    "partition from the control plane": 2,
    "partition from all": 2,
    "disk full": 2,
    "frozen": 2,
    "kill control plane": 1,
}
AWAY_S: Final = (1.0, 12.0)
BETWEEN_S: Final = (2.0, 10.0)
START_TRIES: Final = 5  # a minute each


@dataclass
class FaultInjector:
    """Injects faults until stopped."""

    site: Site
    stop: threading.Event
    chance: random.Random
    scm_until_s: float  # the control plane is not killed after this time, to watch its memory
    counts: Counter[str] = field(default_factory=Counter)
    damaged: dict[int, str] = field(default_factory=dict)  # container -> datanode with the damage
    told: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Inject one random fault after another, until stopped."""
        doers = self._doers()
        while not self.stop.wait(self.chance.uniform(*BETWEEN_S)):
            possible = {kind: weight for kind, weight in WEIGHTS.items() if self._may(kind)}
            [kind] = self.chance.choices(list(possible), list(possible.values()))
            try:
                done = doers[kind]()
            except (SutureError, OSError, NoLoopDevices) as error:
                self.told.append(f"{kind}: {error!r}")
                continue
            self.counts[kind if done else f"{kind}, not possible"] += 1

    def _may(self, kind: str) -> bool:
        return kind != "kill control plane" or time.monotonic() < self.scm_until_s

    def _doers(self) -> dict[str, Callable[[], bool]]:
        return {
            "damage": self.damage,
            "kill agent": self.kill_agent,
            "power cut": self.power_cut,
            "partition from the control plane": lambda: self.partition(from_all=False),
            "partition from all": lambda: self.partition(from_all=True),
            "disk full": self.disk_full,
            "frozen": self.freeze,
            "kill control plane": self.kill_scm,
        }

    # one fault each

    def kill_agent(self) -> bool:
        """Kill an agent, and restart it later."""
        index = self._victim()
        self.site.cluster.nodes[index].kill()
        self._away()
        self._start(index)
        return True

    def power_cut(self) -> bool:
        """Cut the power of a host: unsynced data on all its disks is lost."""
        index = self._victim()
        process, disks = self.site.cluster.nodes[index], self.site.disks[index]
        assert process.popen is not None
        process.popen.send_signal(signal.SIGSTOP)  # so that the agent does not notice the power cut
        were_possible = [disk.cut_power() for disk in disks]
        process.kill()
        for disk in disks:
            disk.power_on()
        self._away()
        self._start(index)
        return all(were_possible)

    def partition(self, *, from_all: bool) -> bool:
        """Disconnect an agent from the control plane or, with `from_all`, also from all peers and
        clients, for a while."""
        index = self.chance.randrange(len(self.site.cluster.nodes))
        lines = [self.site.cluster.to_scm[index]]
        if from_all:
            lines.append(self.site.cluster.to_agent[index])
        stalls = self.chance.random() < 0.5
        for line in lines:
            line.breaks_after(0, stalls=stalls)
            line.cut()
        self._away()
        for line in lines:
            line.breaks_after(-1, stalls=False)
            line.cut()
        return True

    def disk_full(self) -> bool:
        """Fill one disk for a while."""
        index = self.chance.randrange(len(self.site.cluster.nodes))
        disk = self.chance.choice(self.site.disks[index])
        try:
            was_possible = disk.fill()
            self._away()
        finally:
            disk.free()
        return was_possible

    def freeze(self) -> bool:
        """Suspend an agent's process for a while, like a host that swaps or is suspended."""
        index = self._victim()
        popen = self.site.cluster.nodes[index].popen
        assert popen is not None
        popen.send_signal(signal.SIGSTOP)
        try:
            self._away()
        finally:
            popen.send_signal(signal.SIGCONT)
        return True

    def kill_scm(self) -> bool:
        """Kill and restart the control plane."""
        self.site.cluster.scm.kill()
        self.stop.wait(self.chance.uniform(0, 3))
        self.site.cluster.restart_scm()
        return True

    def damage(self) -> bool:
        """Damage one or two blocks of one replica in a healthy container."""
        whole = [info for info in self.site.containers() if is_whole(info)]
        self.chance.shuffle(whole)
        for info in whole:
            replica = self._damageable(info)
            if replica is None:
                continue
            found = self._damaged(info, replica)
            if found:
                self.damaged[info.container_id] = replica.datanode.datanode_id
                self.counts["blocks damaged"] += sum(one.blocks_hit for one in found)
                return True
        return False

    def _damageable(self, info: scm_pb2.ContainerInfo) -> scm_pb2.ContainerInfoReplica | None:
        """Return the replica of a container that may be damaged; None if there is none. If a
        replica was damaged before, return the same one."""
        mine = self.damaged.get(info.container_id)
        fit = [one for one in info.replicas if one.datanode.datanode_id in self.site.indexes]
        if mine is not None:
            fit = [one for one in fit if one.datanode.datanode_id == mine]
        return self.chance.choice(fit) if fit else None

    def _damaged(
        self, info: scm_pb2.ContainerInfo, replica: scm_pb2.ContainerInfoReplica
    ) -> list[Damage]:
        cluster, indexes = self.site.cluster, self.site.indexes
        index = indexes[replica.datanode.datanode_id]
        try:
            root = replica_root(cluster, index, info.container_id)
            blocks = damageable_blocks(self.site.client, info)
        except SutureError:  # deleted in the meantime, or its datanode does not answer
            return []
        with_files = [b for b in blocks if (root / "chunks" / f"{b.block_id}.block").exists()]
        done: list[Damage] = []
        for block in with_files[: self.chance.randint(1, 2)]:
            target: Target = target_of(cluster, indexes, info.container_id, replica, [block])
            try:
                done.append(self.chance.choice(WAYS)(target))
            except (OSError, AssertionError):  # deleted by a client, or already damaged in this way
                continue
        return done

    # what they share

    def _victim(self) -> int:
        """Return an agent that may be killed."""
        return self.chance.choice([i for i in range(len(self.site.cluster.nodes)) if i != SPARED])

    def _away(self) -> None:
        self.stop.wait(self.chance.uniform(*AWAY_S))

    def _start(self, index: int) -> None:
        """Start an agent, and wait until it serves. On a busy machine a start may time out, so
        retry while the process is alive."""
        process = self.site.cluster.nodes[index]
        listen = self.site.cluster.start_again
        for tries_left in reversed(range(START_TRIES)):
            try:
                listen(index)
                break
            except UnavailableError:
                if not tries_left or process.popen is None or process.popen.poll() is not None:
                    raise
                listen = self._wait_for

    def _wait_for(self, index: int) -> None:
        self.site.cluster.nodes[index].wait_until_listening()
