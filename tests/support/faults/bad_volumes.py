"""A real agent with four volumes. One volume at a time gets a fault, and all four are checked.

One setup serves many cases. After each case the damaged volume is restored from its template. The
other three volumes are kept, and all data that was acknowledged on them is read in each case.

A fault is created before the agent starts, or while the agent is used, followed by a restart. The
other three volumes must then serve in time. The agent must report the faulty volume, and must not
have changed its files.
"""

import contextlib
import itertools
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from agent.store.files.layout import VolumeLayout
from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockData, BlockId, ContainerId
from scm.api import call_values, datanode_wire
from scm.cluster.nodes import Registration
from suture.errors import SutureError
from suture.wire.clients.block_peer import PeerTimeouts
from suture.wire.clients.peer import Peer
from suture.wire.mapping import codec
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tests.support.control.scripted_scm import CLUSTER_ID, ScriptedScm
from tests.support.faults.eio_disk import EioDisk, forget_mapped, forget_pages, run
from tests.support.faults.victim import Victim
from tests.support.faults.volume_faults import Case, Kind, Place, damage, remove
from tests.support.storage.stores import (
    chunk_of,
    closed_replica,
    content,
    options_of_test,
    write_block,
)

VOLUMES = 4
DATANODE = "dn-four-volumes"
BLOCKS = 5  # of a closed replica
SMALL_BLOCKS = 60  # of an open one: they fill the index
SERVED_MAX_S = 60.0
CALL_S = 10.0
TOLD_MAX_S = 20.0
READS_OF_OTHERS = 12  # blocks read in each check of the good volumes; the last check reads all
QUICK = PeerTimeouts(call_s=CALL_S, tree_s=CALL_S, chunk_s=CALL_S)


@dataclass(slots=True)
class Outcome:
    """The result of a case. `faults` is empty if the agent behaved as required."""

    case: Case
    where: str = ""
    end: str = ""  # left out, findings, whole
    served_s: float = 0.0
    restarts: int = 0
    faults: list[str] = field(default_factory=list)


class HearingScm(ScriptedScm):
    """Parses heartbeats as the control plane does, and keeps the volumes in the last message."""

    def __init__(self) -> None:
        super().__init__()
        self.volumes: dict[str, str] = {}
        self.refused: list[str] = []

    def Register(
        self, request: scm_pb2.RegisterRequest, context: grpc.ServicerContext
    ) -> scm_pb2.RegisterResponse:
        """Answer from the script."""
        self._hear(lambda: datanode_wire.registration_from(request))
        return super().Register(request, context)

    def Heartbeat(
        self, request: scm_pb2.HeartbeatRequest, context: grpc.ServicerContext
    ) -> scm_pb2.HeartbeatResponse:
        """Answer from the script."""
        self._hear(lambda: datanode_wire.heartbeat_from(request, now_ms=1))
        return super().Heartbeat(request, context)

    def _hear(self, parse: Callable[[], Registration | call_values.Heartbeat]) -> None:
        with self.changed:
            try:
                heard = parse()
                self.volumes = {one.path: one.error for one in heard.volumes if one.failed}
                self.refused += heard.refused
            except SutureError as error:
                self.refused.append(str(error))


class FourVolumes:
    """Four volumes below `root`, an agent that is restarted when it dies, and a fake SCM."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = [root / f"v{number}" for number in range(VOLUMES)]
        self.log = root / "agent.log"
        self.acknowledged: dict[tuple[int, int, int], bytes] = {}
        self.template: dict[tuple[int, int, int], bytes] = {}
        self.volume_of: dict[int, int] = {}
        self._next_block = itertools.count(1_000_000)
        self._stack = contextlib.ExitStack()
        self._address: str | None = None
        self._disk: EioDisk | None = None
        self._open: dict[int, int] = {}
        self.restarts = 0

    def __enter__(self) -> Self:
        self._make()
        self.scm = HearingScm()
        self._stack.enter_context(self.scm)
        self.victim = self._stack.enter_context(Victim(self.log))
        quoted = ", ".join(f'"{path}"' for path in self.paths)
        self.config = self.root / "agent.toml"
        self.config.write_text(
            f'[node]\nlisten = "127.0.0.1:0"\nscm = "{self.scm.address}"\n'
            f"[storage]\nvolumes = [{quoted}]\nreserve_bytes = 0\n"
            "[scan]\nenabled = false\nwatch = false\n"
            '[observe]\nlisten = ""\n'
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        if self._disk is not None:
            self._disk.unmount()

    # -- the set-up

    def _make(self) -> None:
        store = ReplicaStore.open(
            self.paths,
            cluster_id=CLUSTER_ID,
            datanode_id=DATANODE,
            options=options_of_test(),
        )
        for container_id in range(1, 3 * VOLUMES + 1):
            if container_id <= 2 * VOLUMES:
                blocks = closed_replica(store, container_id, block_ids=range(1, BLOCKS + 1))
            else:
                store.create_container(ContainerId(container_id))
                blocks = {
                    block_id: write_block(
                        store, container_id, block_id, chunk_count=1, chunk_bytes=100
                    )
                    for block_id in range(1, SMALL_BLOCKS + 1)
                }
            for block in blocks.values():
                for number, chunk in enumerate(block.chunks):
                    data = content((block.block_id, number), chunk.length_bytes)
                    self.acknowledged[container_id, block.block_id, chunk.offset] = data
            path = next(
                volume.path
                for volume in store.volumes()
                if volume.volume_id == store.volume_id(ContainerId(container_id))
            )
            self.volume_of[container_id] = self.paths.index(path)
            if container_id > 2 * VOLUMES:
                self._open[self.volume_of[container_id]] = container_id
        store.close()
        assert set(self._open) == set(range(VOLUMES)), "a replica of each kind on each volume"
        self.template = dict(self.acknowledged)
        for path in self.paths:
            shutil.copytree(path, self.root / "template" / path.name)

    def _restore(self, number: int) -> None:
        """Restore a volume from its template, and forget later writes to it."""
        path = self.paths[number]
        if self._disk is not None:
            self._disk.unmount()
            self._disk = None
        for name in (path, self.root / "aside"):
            remove(name)
        shutil.copytree(self.root / "template" / path.name, path)
        for key in [key for key in self.acknowledged if self.volume_of[key[0]] == number]:
            if key not in self.template:
                del self.acknowledged[key]

    # -- one case

    def run(self, case: Case) -> Outcome:
        """Restore the volume that gets the fault, and run one case; return the result."""
        chance, fault = random.Random(case.seed), random.Random(case.seed)
        outcome = Outcome(case)
        bad = chance.randrange(VOLUMES)
        self._restore(bad)
        if case.kind is Kind.EIO:
            self._use_disk(bad)
        log_from = self.log.stat().st_size
        self.scm.refused.clear()
        self.restarts = 0
        target = self._target(case, bad, fault)
        outcome.where = str(target.relative_to(self.root))
        if case.in_use:
            self._serve(bad, chance, outcome)
            damage(case, target, self._disk, self.paths[bad], self.root / "aside", fault)
            if case.kind is Kind.EIO and case.place is Place.INDEX:
                forget_mapped(self.victim.pid, target)
            self._poke(bad, chance)
            self._serve(bad, chance, outcome)
            self._end(chance)
            if case.kind is Kind.EIO and target.is_file():
                forget_pages(target)
        else:
            damage(case, target, self._disk, self.paths[bad], self.root / "aside", fault)
        self._serve(bad, chance, outcome)
        self._judge(bad, chance, outcome, log_from)
        self._serve(bad, chance, outcome)
        outcome.restarts = self.restarts
        if self.restarts > 1:
            outcome.faults.append(f"{self.restarts} restarts")
        self._end(chance)
        self._compare(case, target, bad, outcome)
        self._restore(bad)
        return outcome

    def _use_disk(self, bad: int) -> None:
        self._disk = EioDisk(self.root / "disk", self.paths[bad])
        remove(self.paths[bad])
        self.paths[bad].mkdir()
        self._disk.mount()
        shutil.copytree(
            self.root / "template" / self.paths[bad].name, self.paths[bad], dirs_exist_ok=True
        )
        run("sync", "-f", self.paths[bad])
        self._disk.unmount()
        self._disk.mount()

    def _target(self, case: Case, bad: int, chance: random.Random) -> Path:
        layout = VolumeLayout(self.paths[bad], CLUSTER_ID)
        closed = [
            number
            for number, volume in self.volume_of.items()
            if volume == bad and number not in self._open.values()
        ]
        replica = layout.replica(ContainerId(chance.choice(closed)))
        match case.place:
            case Place.INDEX:
                return layout.database / "data.mdb"
            case Place.VERSION:
                return layout.version
            case Place.DESCRIPTOR:
                return replica.descriptor
            case Place.TREE:
                return replica.tree
            case Place.BLOCK:
                return replica.block_file(BlockId(chance.randint(1, BLOCKS)))
            case Place.VOLUME:
                return layout.volume
            case Place.DIRECTORY:
                above = (layout.hdds, layout.cluster, layout.current, layout.database)
                own = (replica.root.parent, replica.root, replica.chunks, replica.descriptor.parent)
                return chance.choice((*above, *own))

    # -- the agent

    def _alive(self) -> str:
        """Return the agent's address. If the agent died, start it again, as systemd does."""
        deadline_s = time.monotonic() + SERVED_MAX_S
        while True:
            if self._address is not None and self.victim.is_over(0.0):
                self.victim.wait()
                self._address = None
                self.restarts += 1
            if self._address is None:
                self._address = self.victim.begin(self.config)
                if self._address is None:
                    self.restarts += 1
            if self._address is not None:
                return self._address
            assert time.monotonic() < deadline_s, "the agent does not start"

    def _end(self, chance: random.Random) -> None:
        """Stop the agent, sometimes by SIGKILL."""
        if self._address is None:
            return
        if self.victim.is_over(0.0):
            self.victim.wait()
            self.restarts += 1
        else:
            os.kill(self.victim.pid, signal.SIGKILL if chance.random() < 0.3 else signal.SIGTERM)
            self.victim.wait()
        self._address = None

    def _serve(self, bad: int, chance: random.Random, outcome: Outcome) -> None:
        """Wait until the volumes other than `bad` serve reads and writes; record the duration."""
        began_s, last = time.monotonic(), ""
        while time.monotonic() - began_s < SERVED_MAX_S:
            try:
                with Peer(self._alive(), timeouts=QUICK) as peer:
                    self._read_good(peer, bad, chance)
                    for number, container_id in self._open.items():
                        if number != bad:
                            self._write(peer, container_id)
            except (SutureError, grpc.RpcError) as error:
                last = str(error)
                self.victim.is_over(0.1)
                continue
            outcome.served_s = max(outcome.served_s, time.monotonic() - began_s)
            return
        outcome.faults.append(f"the other volumes were not served within 60 s: {last[:200]}")

    def _read_good(self, peer: Peer, bad: int, chance: random.Random) -> None:
        keys = [key for key in self.acknowledged if self.volume_of[key[0]] != bad]
        for key in chance.sample(keys, min(READS_OF_OTHERS, len(keys))):
            self._read(peer, key)

    def read_all(self) -> int:
        """Read all acknowledged chunks on all volumes, and stop the agent; return the number of
        chunks."""
        with Peer(self._alive(), timeouts=QUICK) as peer:
            for key in self.acknowledged:
                self._read(peer, key)
        self._end(random.Random(0))
        return len(self.acknowledged)

    def _read(self, peer: Peer, key: tuple[int, int, int]) -> None:
        container_id, block_id, offset = key
        _, data = peer.read_chunk(ContainerId(container_id), BlockId(block_id), offset)
        assert self.acknowledged[key] == data, f"other bytes at {key}"

    def _write(self, peer: Peer, container_id: int) -> None:
        block_id = next(self._next_block)
        data = content(block_id, 500)
        chunk = chunk_of(data)
        block = BlockData(BlockId(block_id), codec.parse_bcsid(block_id, ""), (chunk,))
        request = datanode_pb2.WriteChunkRequest(
            block_id=container_pb2.BlockId(
                container_id=container_id, local_id=block_id, bcsid=block_id
            ),
            chunk=codec.chunk_message(chunk),
            data=data,
        )
        request.commit.CopyFrom(codec.block_message(ContainerId(container_id), block))
        peer.stub.WriteChunk(request, timeout=CALL_S)
        self.acknowledged[container_id, block_id, 0] = data

    def _poke(self, bad: int, chance: random.Random) -> list[int]:
        """Read all data of the faulty volume, and write to it; return the containers in which a
        read failed."""
        failed = set()
        keys = [key for key in self.template if self.volume_of[key[0]] == bad]
        chance.shuffle(keys)
        with Peer(self._alive(), timeouts=QUICK) as peer:
            for key in keys:
                if key[0] in failed and chance.random() < 0.8:
                    continue
                try:
                    self._read(peer, key)
                except SutureError:
                    failed.add(key[0])
                if self.victim.is_over(0.0):
                    return sorted(failed)
            with contextlib.suppress(grpc.RpcError, SutureError):
                self._write(peer, self._open[bad])
        return sorted(failed)

    # -- what it came to

    def _judge(self, bad: int, chance: random.Random, outcome: Outcome, log_from: int) -> None:
        """Record the final state of the faulty volume, and a fault if the agent does not report
        which volume it is."""
        path = str(self.paths[bad])
        unread = self._poke(bad, chance)
        damaged = {number for number in self.volume_of if self._has_findings(number, bad)}
        with Peer(self._alive(), timeouts=QUICK) as peer:
            failed = {one.path: one.error for one in peer.status().volumes if one.failed}
        if set(failed) - {path}:
            outcome.faults.append(f"another volume failed: {failed}")
        if path in failed:
            outcome.end = "left out"
            if not self.scm.wait_until(lambda: path in self.scm.volumes, TOLD_MAX_S):
                outcome.faults.append("the control plane was not told")
            if f'"{path}"' not in self._log_since(log_from):
                outcome.faults.append("the log does not name it")
        else:
            outcome.end = "findings" if damaged else "whole"
            silent = sorted(set(unread) - damaged)
            if silent and f"{path}/" not in self._log_since(log_from):
                outcome.faults.append(f"reads of {silent} fail, and nothing says so")
        if self.scm.refused:
            outcome.faults.append(f"the control plane refused: {self.scm.refused[0]}")

    def _log_since(self, log_from: int) -> str:
        with self.log.open("rb") as log:
            log.seek(log_from)
            return log.read().decode(errors="replace")

    def _has_findings(self, container_id: int, bad: int) -> bool:
        """Scan a replica of the bad volume; return whether the scan reports damage."""
        if self.volume_of[container_id] != bad:
            return False
        one = ContainerId(container_id)
        try:
            with Peer(self._alive(), timeouts=QUICK) as peer:
                is_open = container_id in self._open.values()
                if not is_open:
                    list(peer.scan(one, full_speed=True))
                report = peer.replica(one)
                return report.finding_count > 0 or report.state == container_pb2.UNHEALTHY
        except SutureError as error:
            return str(self.paths[bad]) in str(error) or "cannot be loaded" in str(error)

    def _compare(self, case: Case, target: Path, bad: int, outcome: Outcome) -> None:
        """Record a fault for each changed block file of the faulty volume, except for the target of
        the injected fault."""
        if case.kind is Kind.UNMOUNTED:
            return
        path = self.paths[bad]
        quarantined = []
        with contextlib.suppress(OSError):
            kept = VolumeLayout(path, CLUSTER_ID).quarantine
            files = [file for file in kept.rglob("*.bytes") if file.is_file()]
            quarantined = [file.read_bytes() for file in files]
        for before in (self.root / "template" / path.name).rglob("*.block"):
            name = path / before.relative_to(self.root / "template" / path.name)
            if target in (name, *name.parents):
                continue
            try:
                data = name.read_bytes()
            except OSError as error:
                if case.kind is not Kind.EIO:
                    outcome.faults.append(f"{name}: {error.strerror}")
                continue
            if not data.startswith(before.read_bytes()) and before.read_bytes() not in quarantined:
                outcome.faults.append(f"{name} was changed")
