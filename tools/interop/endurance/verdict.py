"""Judges a cluster after load and faults: it waits until the cluster is settled, and checks every
replica.

A cluster is settled if all of these hold: all datanodes are healthy, every container is closed, no
delete is pending, and the replication manager reports only healthy containers, each with the
required number of replicas.
"""

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from merkle.replica import ContainerId
from ozone.clients.datanode import Datanode
from suture.errors import SutureError
from tools.interop.agents import ERROR, Agent, Replica, Scm
from tools.interop.endurance.load import Key, Load, OzoneKeyState
from tools.interop.process_cluster_trial import Place
from tools.interop.site import OzoneProcessCluster

SETTLE_S: Final = 1200.0
FORGOTTEN_S: Final = 90.0  # after this time, pending deletes that do not decrease count as stuck
POLL_S: Final = 2.0
READ_TRIES: Final = 3
READERS: Final = 4
UNACKNOWLEDGED: Final = " deletes are not acknowledged"
FINE: Final = frozenset({"HEALTHY", "CLOSED", "DELETED", "TOTAL"})
QUASI_CLOSED: Final = "QUASI_CLOSED"
KEPT: Final = frozenset({"CLOSED", QUASI_CLOSED})
INDEXES: Final = tuple(range(1, 6))
DATA_SHARDS: Final = 3
COPIES: Final = 3


@dataclass
class ClusterInspector:
    """Checks the cluster from outside."""

    site: OzoneProcessCluster
    scm: Scm
    agents: list[Agent]
    places: Mapping[str, Place]  # by datanode id
    replicas: dict[int, dict[str, Replica]] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)
    stuck: list[int] = field(default_factory=list)
    """QUASI_CLOSED containers with three replicas, which Ozone's replication manager calls stuck.
    All their replicas are copies from one of the three datanodes to which clients wrote. The
    manager cannot know the data of the other two, and leaves the containers in this state. Their
    roots, keys and blocks are judged like those of other containers."""
    empty: list[int] = field(default_factory=list)
    """Containers without a key and without a replica. There is no datanode that could delete them,
    so the replication manager counts them as EMPTY permanently."""
    hollow: list[int] = field(default_factory=list)
    """Erasure-coded containers without a key and with too few shards to reconstruct the others. A
    client wrote chunks to some of the datanodes, and committed nothing because another datanode was
    dead. The SCM calls such a container MISSING, and no datanode acknowledges its deletes."""
    miscounted: int = 0
    """Absolute value of the SCM's count of unacknowledged deletes, if this count is negative. The
    SCM stores the count separately from the deletes. If the SCM was killed, it may subtract a
    delete twice. Therefore, all replicas are searched for remaining blocks of deleted keys."""
    woken: int = 0  # SCM restarts needed to continue deletes

    # settling

    def settle(self) -> str:
        """Wait until nothing is in progress; return "". If this takes longer than SETTLE_S, return
        a text about the work that is still in progress."""
        ends_at_s = time.monotonic() + SETTLE_S
        since_ms, since_s, last = int(time.time() * 1000), time.monotonic(), ""
        while True:
            try:
                why = self._unsettled(since_ms)
            except (RuntimeError, SutureError) as error:
                why = str(error)
            if not why or time.monotonic() > ends_at_s:
                return why
            if why != last:
                last, since_s = why, time.monotonic()
            elif why.endswith(UNACKNOWLEDGED) and time.monotonic() - since_s > FORGOTTEN_S:
                if self.hollow and self.woken:
                    return ""  # all commands that could be ordered again were ordered
                self._wake_scm()
                since_s = time.monotonic()
            time.sleep(POLL_S)

    def _wake_scm(self) -> None:
        """Restart the SCM if it no longer orders deletes.

        Observed with Ozone 2.2.0 if a replica moved during the deletes: all datanodes have
        acknowledged them, but the SCM counts them as pending and does not order them again. After a
        restart it orders them again, and they complete.
        """
        self.woken += 1
        self.site.scm.kill()
        self.site.scm.start()

    def _unsettled(self, since_ms: int) -> str:
        client = self.site.client
        sick = [place.name for uuid, place in self.places.items()
                if self.scm.node(uuid) != "HEALTHY IN_SERVICE"]  # fmt: skip
        if sick:
            return f"not healthy: {', '.join(sick)}"
        containers = client.containers()
        opened = [one for one, (state, _, _) in containers.items() if state == "OPEN"]
        for container in opened:
            client.tell(f"close {container}")
        if opened:
            return f"open: {opened[:10]}"
        states = {state for state, _, _ in containers.values()}
        if states - FINE - {QUASI_CLOSED}:
            return f"containers: {sorted(states)}"
        kept = {one: (kind, keys) for one, (state, kind, keys) in containers.items()
                if state in KEPT}  # fmt: skip
        self.replicas = {one: self.scm.told_of(one) for one in kept}
        self.empty = [one for one, (_, keys) in kept.items() if not keys and not self.replicas[one]]
        self.hollow = [one for one, (kind, keys) in kept.items() if kind == "EC" and not keys
                       and 0 < len(self._indexes(one)) < DATA_SHARDS]  # fmt: skip
        self.stuck = [one for one in kept if containers[one][0] == QUASI_CLOSED]
        gone = {*self.empty, *self.hollow}
        self.kinds = {one: kind for one, (kind, _) in kept.items() if one not in gone}
        odd = [one for one in self.kinds if not self._is_whole(one)]
        if odd:
            return f"{len(odd)} containers, as {odd[0]}: {self._told(odd[0])}"
        at_ms, counts = client.report()
        left = Counter({name: count for name, count in counts.items() if name not in FINE})
        left.subtract({"EMPTY": len(self.empty), "MISSING": len(self.hollow)})
        left.subtract(dict.fromkeys((QUASI_CLOSED, f"{QUASI_CLOSED}_STUCK"), len(self.stuck)))
        if any(left.values()) or at_ms < since_ms:
            return f"report of the replication manager: {dict(left) or 'an old one'}"
        undeleted = int(client.tell("undeleted"))
        self.miscounted = min(undeleted, 0)
        return "" if undeleted <= 0 else f"{undeleted}{UNACKNOWLEDGED}"

    def _indexes(self, container: int) -> set[int]:
        return {one.index for one in self.replicas[container].values()}

    def _is_whole(self, container: int) -> bool:
        replicas = self.replicas[container].values()
        indexes = sorted(one.index for one in replicas)
        wanted = list(INDEXES) if self.kinds[container] == "EC" else [0] * COPIES
        state = QUASI_CLOSED if container in self.stuck else "CLOSED"
        return indexes == wanted and all(one.state == state for one in replicas)

    def _told(self, container: int) -> str:
        return ", ".join(
            f"{self.places[uuid].name} {one.state}" + (f" index {one.index}" if one.index else "")
            for uuid, one in self.replicas[container].items()
        )

    # keys

    def read_back(self, load: Load) -> tuple[Counter[str], list[str]]:
        """Read every key; return the counts of their states, and the errors."""
        found: Counter[str] = Counter()
        wrong: list[str] = []
        with ThreadPoolExecutor(READERS) as pool:
            each = list(pool.map(self._read, load.keys))
        for key, said in zip(load.keys, each, strict=True):
            allowed = {
                OzoneKeyState.STORED: {"equal"},
                OzoneKeyState.GONE: {"absent"},
                OzoneKeyState.EITHER: {"equal", "absent"},
            }[key.fate]
            found[
                f"{key.fate.name} {said if said in {'equal', 'absent', 'differs'} else 'failed'}"
            ] += 1
            if said not in allowed:
                wrong.append(f"{key.name} ({key.size_bytes} bytes, {key.fate.name}) is {said}")
        return found, wrong

    def _read(self, key: Key) -> str:
        said = ""
        for _ in range(READ_TRIES):
            try:
                return self.site.client.tell(f"read {key.words}")
            except RuntimeError as error:
                said = str(error)
        return said

    # replicas

    def unequal(self) -> dict[int, dict[str, Replica]]:
        """Return the containers in which replicas with the same bytes have different roots."""
        found = {}
        for container, replicas in self.replicas.items():
            roots: dict[int, set[int]] = {}
            for one in replicas.values():
                roots.setdefault(one.index, set()).add(one.root)
            if any(len(several) > 1 for several in roots.values()):
                found[container] = replicas
        return found

    def blocks(self) -> Mapping[tuple[int, str], frozenset[int]]:
        """Return the blocks of each replica, as its datanode lists them."""
        found: dict[tuple[int, str], frozenset[int]] = {}
        access = self.site.security.access(self.site.datanodes[0].place)
        for container, replicas in self.replicas.items():
            for uuid, one in replicas.items():
                with Datanode(
                    self.places[uuid].address, uuid, replica_index=one.index, access=access
                ) as datanode:
                    ids = frozenset(datanode.block_ids(ContainerId(container)))
                found[container, uuid] = ids
        return found

    def misplaced(
        self, keys: Iterable[Key], returned_s: Sequence[float]
    ) -> tuple[list[str], list[str]]:
        """Return blocks that are missing, and blocks that should have been deleted. Keys that were
        deleted before a dead datanode returned are listed separately.

        Ozone's SCM counts a delete as done when all datanodes that it considers alive have
        acknowledged it. A datanode that was considered dead and returns with its replica never
        receives the delete. Neither does a datanode that copies the replica from it.
        """
        held = self.blocks()
        wrong: list[str] = []
        left: list[str] = []
        for key in keys:
            for container, block in key.blocks:
                at = self.replicas.get(container, {})
                there = [uuid for uuid in at if block in held[container, uuid]]
                what = f"{key.name}: block {block} of {container}"
                names = [self.places[uuid].name for uuid in there]
                if key.fate is OzoneKeyState.GONE and there:
                    is_known = any(at_s > key.gone_s for at_s in returned_s)
                    (left if is_known else wrong).append(f"{what} is left at {names}")
                if key.fate is OzoneKeyState.STORED and key.how == "write" and len(there) != COPIES:
                    wrong.append(f"{what} is at {names} only")
        return wrong, left


def errors_naming(site: OzoneProcessCluster, agents: Iterable[Agent]) -> list[str]:
    """Return the errors in Ozone's logs that name an agent, by its id or address."""
    names = [name for agent in agents for name in (agent.datanode_id, agent.door)]
    return [
        f"{process.name}: {line}"
        for process in site.processes
        for line in process.log.read_text(errors="replace").splitlines()
        if re.search(ERROR, line) and any(name in line for name in names)
    ]
