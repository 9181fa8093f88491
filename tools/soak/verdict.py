"""Ends a soak test: waits until the cluster is quiet, and judges it.

The cluster is quiet when every container is closed, scanned, complete and equal on all replicas.
Then every key is read back, and the disk space and the processes are judged.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Final

from suture import Client
from suture.errors import SutureError
from suture.wire.v1 import scm_pb2
from tools.demo.stage import HEALTHY, is_whole
from tools.soak.fault_injector import FaultInjector
from tools.soak.footprints import Growth, Watch
from tools.soak.load import Key, KeyState, Oracle, look
from tools.soak.site import Site

QUIET_S: Final = 900.0
POLL_S: Final = 2.0
READERS: Final = 4
READ_TRIES: Final = 3
UNFINISHED: Final = ("tmp/importing", "tmp/deleting")
ROOM_SHARE: Final = 1.25  # of three copies of the stored data; blocks of 4 KiB are not full
ROOM_MORE_BYTES: Final = 64 * 1024**2
LIFE_S_MIN: Final = 1800.0  # shorter lives are not judged, because their caches still fill
THREADS_PER_H_MAX: Final = 6.0
DESCRIPTORS_PER_H_MAX: Final = 30.0
ANON_BYTES_PER_H_MAX: Final = 96 * 1024**2


@dataclass
class Result:
    """The result of a soak test. `wrong` is empty if every check passed."""

    seed: int
    minutes: float
    agents: int
    disks: str
    operations: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    keys_written: int = 0
    keys_read_back: int = 0
    keys_lost: int = 0
    bytes_written: int = 0
    quiet_after_s: float = 0.0
    containers: int = 0
    room_bytes: int = 0
    stored_bytes: int = 0
    growths: list[Growth] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def document(self) -> dict[str, object]:
        """Return the result for JSON."""
        return asdict(self)


def judge(result: Result, site: Site, oracle: Oracle, harms: FaultInjector, watch: Watch) -> None:
    """Wait until the cluster is quiet, and judge it; record all errors in `result`."""
    began_s = time.monotonic()
    for what in (not_quiet, unread_since(int(time.time() * 1000)), not_quiet):
        why = until(partial(what, site), QUIET_S)
        if why:
            result.wrong.append(f"not quiet after {QUIET_S:.0f} s: {why}")
    result.quiet_after_s = time.monotonic() - began_s
    result.wrong += harms.told
    read_back(result, site, oracle)
    judge_room(result, site)
    result.growths = watch.growths()
    result.wrong += [*leaking(result.growths), *sorted(watch.beyond)]
    result.wrong += oracle.wrong
    result.containers = len(site.containers())
    result.operations = dict(oracle.counts)
    result.faults = dict(harms.counts)
    result.bytes_written = oracle.written_bytes


def until(why_not: Callable[[], str], wait_s: float) -> str:
    """Wait until `why_not` returns ""; return its last result."""
    pause, deadline_s = Event(), time.monotonic() + wait_s
    why = why_not()
    while why and time.monotonic() < deadline_s:
        pause.wait(POLL_S)
        why = why_not()
    return why


def not_quiet(site: Site) -> str:
    """Return the remaining work; "" if every container is closed and healthy."""
    try:
        nodes = site.client.scm.list_nodes(scm_pb2.ListNodesRequest()).nodes
        silent = [node.datanode_id for node in nodes if node.health != HEALTHY]
        if silent:
            return f"{len(silent)} datanodes do not answer"
        infos = [info for info in site.containers() if info.state not in {"DELETED", "DELETING"}]
        opened = [info.container_id for info in infos if info.state == "OPEN"]
        if opened:
            site.client.scm.close_containers(
                scm_pb2.CloseContainersRequest(container_ids=opened[:100])
            )
            return f"{len(opened)} containers are open"
    except SutureError as error:
        return str(error)
    unsound = [info.container_id for info in infos if not is_sound(info)]
    return f"{len(unsound)} containers are not whole, as {unsound[:5]}" if unsound else ""


def is_sound(info: scm_pb2.ContainerInfo) -> bool:
    """Return True if a container has three equal replicas without findings."""
    return is_whole(info) and not any(item.replica.finding_count for item in info.replicas)


def unread_since(since_ms: int) -> Callable[[Site], str]:
    """Return a function that reports the replicas that were not read completely since an
    instant."""

    def unread(site: Site) -> str:
        try:
            late = [
                info.container_id
                for info in site.containers()
                if info.state == "CLOSED"
                and any(item.replica.data_scan_at_ms < since_ms for item in info.replicas)
            ]
        except SutureError as error:
            return str(error)
        return f"{len(late)} containers were not read, as {late[:5]}" if late else ""

    return unread


def read_back(result: Result, site: Site, oracle: Oracle) -> None:
    """Read every key; record those that are lost, wrong, or undeleted."""
    keys = list(oracle.keys.values())
    with Client(site.cluster.scm.address) as client, ThreadPoolExecutor(READERS) as pool:
        said = list(pool.map(lambda key: read_key(client, key, oracle), keys))
    result.keys_written = oracle.counts["put"]
    found = (key for key, why in zip(keys, said, strict=True) if not why)
    result.stored_bytes = sum(key.size_bytes for key in found)  # also after failed operations
    for key, why in zip(keys, said, strict=True):
        if key.fate is not KeyState.STORED:
            continue
        result.keys_read_back += not why
        result.keys_lost += bool(why)
        if why:
            result.wrong.append(f"{key.name} cannot be read back{why}")


def read_key(client: Client, key: Key, oracle: Oracle) -> str:
    """Read one key, with retries, and compare it with its expected state. Return "" if it could be
    read, otherwise the reason."""
    why = ""
    for _ in range(READ_TRIES):
        why = look(client, key, oracle)
        if not why or why == ": gone":
            break
    return why


def judge_room(result: Result, site: Site) -> None:
    """Compare the used space with the stored data; look for leftovers."""
    limit = ROOM_SHARE * 3 * result.stored_bytes + ROOM_MORE_BYTES
    why = until(lambda: "too much" if room_bytes(site) > limit else "", QUIET_S / 3)
    result.room_bytes = room_bytes(site)
    if why:
        result.wrong.append(
            f"replicas take {result.room_bytes} bytes; {result.stored_bytes} are stored, in three"
        )
    result.wrong += [f"left behind: {path}" for path in unfinished(site)]


def volumes(site: Site) -> Iterator[Path]:
    """Yield the cluster directory of each volume."""
    for index in range(len(site.cluster.nodes)):
        for path in site.cluster.volume_paths(index):
            yield from path.glob("hdds/*/current")


def room_bytes(site: Site) -> int:
    """Return the disk space that block files occupy, in bytes."""
    total = 0
    for current in volumes(site):
        for path in current.glob("containerDir*/*/chunks/*"):
            try:
                total += path.stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def unfinished(site: Site) -> list[Path]:
    """Return leftovers of copies and writes that no task continues."""
    return [
        path
        for current in volumes(site)
        for name in UNFINISHED
        if (current.parent / name).is_dir()
        for path in (current.parent / name).iterdir()
    ]


def leaking(growths: Sequence[Growth]) -> list[str]:
    """Return a text for each process whose threads, descriptors or memory grow faster than
    allowed."""
    said = []
    for one in (growth for growth in growths if growth.life_s >= LIFE_S_MIN):
        for what, per_h, most in (
            ("threads at work", one.held_threads_per_h, THREADS_PER_H_MAX),
            ("descriptors", one.descriptors_per_h, DESCRIPTORS_PER_H_MAX),
            ("bytes of memory", one.anon_bytes_per_h, ANON_BYTES_PER_H_MAX),
        ):
            if per_h > most:
                said.append(f"{one.name}: {per_h:.0f} {what} more each hour, at most {most:.0f}")
    return said
