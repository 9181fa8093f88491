"""Runs one agent and the SCM in control groups of 512 MiB each, with all kinds of work at once.

    before    200 chunks of 1 MiB are stored on three agents, and all damaged on the limited one
    at once   a scan of the damaged container, then its reconcile, which fetches 200 chunks
              4 clients that put 256 MiB each, 2 that get the 200 MiB, time after time
              200 streams of ReadBlock that are begun and not read

The kernel kills a process that exceeds its group's limit. A group's usage includes the page cache,
which the kernel can reclaim, so the peak of the process (VmHWM) is measured as well. Needs root.
"""

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import IO, Any, Final

import grpc

from bench.clients.measured_process import BenchProcess
from bench.measure import Measure, at_least, at_most
from merkle.replica import ContainerId
from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import SourceFile
from suture.wire.mapping.rpc_services import DATANODE, Stub
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tools.demo.cluster import Cluster, Running, launched
from tools.demo.damage import write_direct
from tools.demo.damage_choice import replica_root

MIB: Final = 1024**2
LIMIT_BYTES: Final = 512 * MIB
CHUNKS: Final = 200
CHUNK_BYTES: Final = MIB
PUT_BYTES: Final = 256 * MIB
PUTTERS: Final = 4
GETTERS: Final = 2
STREAMS: Final = 200
CHANNELS: Final = 8
WAIT_S: Final = 300.0
LIMITED: Final = 0  # the agent with the limit
GROUPS_V1: Final = Path("/sys/fs/cgroup/memory")
GROUPS_V2: Final = Path("/sys/fs/cgroup")


def measures() -> list[Measure]:
    """Run all kinds of work at once, and measure which processes survive, and their memory."""
    with tempfile.TemporaryDirectory(prefix="suture-bench-") as directory, ExitStack() as stack:
        groups = {
            name: stack.enter_context(memory_group(f"suture-bench-{os.getpid()}-{name}"))
            for name in ("agent", "scm")
        }
        root = Path(directory)
        cluster = Cluster(
            root / "cluster",
            agents=3,
            volumes=1,
            container_bytes_max=1024**3,
            launch=partial(limited_launch, groups),
        )
        with cluster, ClusterClient(cluster.scm.address) as client:
            return measured(cluster, client, groups, root, stack)


def measured(
    cluster: Cluster, client: ClusterClient, groups: dict[str, Path], root: Path, stack: ExitStack
) -> list[Measure]:
    """Store and damage the chunks, apply the load, and return the measures."""
    sources = files(root / "chunks", CHUNKS, CHUNK_BYTES)
    _, [container_id, *others] = client.put(sources, lanes=1, close=True)
    assert not others, "all chunks belong into one container"
    damage(replica_root(cluster, LIMITED, container_id))
    [large] = files(root / "large", 1, PUT_BYTES)
    [[in_one_block], _] = client.put([replace(large, key="memory/unread")], lanes=1)
    large_block = in_one_block.blocks[0].block_id
    pids = {"agent": pid_of(cluster.nodes[LIMITED].popen), "scm": pid_of(cluster.scm.popen)}
    ended = Event()
    with ThreadPoolExecutor(PUTTERS + GETTERS) as pool:
        putting = [pool.submit(put, cluster.scm.address, large.path, n) for n in range(PUTTERS)]
        getting = [pool.submit(get, client, sources, ended) for _ in range(GETTERS)]
        unread = unread_streams(cluster.nodes[LIMITED].address, large_block, stack)
        try:
            assert next(unread[0]).data, "the streams are served, as far as the memory goes"
            repaired = scan_and_reconcile(client, cluster, container_id)
            put_count = sum(future.result(WAIT_S) for future in putting)
        finally:
            ended.set()
            for call in unread:
                call.cancel()
        got_count = sum(future.result(WAIT_S) for future in getting)
    alive = sum(Path(f"/proc/{pid}").exists() for pid in pids.values())
    return [
        at_least("memory: processes alive at the end", alive, "of 2", 2),
        at_least("memory: chunks repaired", repaired, "chunks", CHUNKS),
        at_least("memory: puts of 256 MiB", put_count, "puts", PUTTERS),
        at_least("memory: gets of 200 MiB", got_count, "gets", 1),
        *(
            at_most(f"memory: peak of the {name}", peak_bytes(pid) / MIB, "MiB", LIMIT_BYTES / MIB)
            for name, pid in pids.items()
        ),
        *(
            Measure(f"memory: group of the {name}", group_peak(groups[name]) / MIB, "MiB")
            for name in pids
        ),
    ]


def scan_and_reconcile(client: ClusterClient, cluster: Cluster, container_id: int) -> int:
    """Scan the damaged replica and order its reconcile; return how many chunks were fetched."""
    request = scm_pb2.GetContainerInfoRequest(container_id=container_id)
    replica = next(
        one
        for one in client.scm.get_container_info(request).container.replicas
        if one.datanode.address == cluster.nodes[LIMITED].address
    )
    client.peer(replica.datanode).scanned(ContainerId(container_id), waits=lambda _: None)
    order = scm_pb2.ReconcileContainersRequest(container_ids=[container_id])
    client.scm.reconcile_containers(order)
    fetched_count, waited = 0, Event()
    for _ in range(int(WAIT_S)):
        fetched_count = fetched(client, container_id, replica.datanode.datanode_id)
        if fetched_count >= CHUNKS:
            break
        waited.wait(1.0)
    return fetched_count


def fetched(client: ClusterClient, container_id: int, datanode_id: str) -> int:
    """Return the number of chunks that a datanode has fetched from peers to repair a container."""
    return sum(
        outcome.status.reconcile.bytes_fetched // CHUNK_BYTES
        for outcome in client.scm.list_outcomes(scm_pb2.ListOutcomesRequest(count=100)).outcomes
        if (outcome.datanode_id, outcome.status.container_id) == (datanode_id, container_id)
    )


def files(folder: Path, count: int, size_bytes: int) -> list[SourceFile]:
    """Create files of random bytes; return them as sources, sorted by name."""
    folder.mkdir(parents=True)
    chance = random.Random(17)  # noqa: S311 - the same bytes in each run
    for number in range(count):
        with (folder / f"{number:04}").open("wb") as file:
            for _ in range(size_bytes // MIB):
                file.write(chance.randbytes(MIB))
    return [
        SourceFile(f"memory/{path.name}", path, size_bytes) for path in sorted(folder.iterdir())
    ]


def damage(root: Path) -> None:
    """Flip a bit in every block of a replica, on the disk."""
    blocks = sorted((root / "chunks").glob("*.block"))
    assert len(blocks) == CHUNKS, f"{len(blocks)} blocks"
    for path in blocks:
        at = CHUNK_BYTES // 2
        write_direct(path, at, bytes([path.read_bytes()[at] ^ 0x10]))


def put(scm_address: str, path: Path, number: int) -> bool:
    """Put a file with a client in its own process; return True if it succeeded."""
    end = BenchProcess("bench.clients.put_suture", scm_address)
    try:
        end.ask(f"large {path} memory-large-{number}")
    finally:
        end.close()
    return True


def get(client: ClusterClient, sources: Sequence[SourceFile], ended: Event) -> int:
    """Read all keys repeatedly until `ended` is set; return the number of complete passes."""
    count = 0
    while not ended.is_set():
        for source in sources:
            assert b"".join(client.get(source.key)) == source.path.read_bytes(), source.key
        count += 1
    return count


def unread_streams(address: str, block_id: container_pb2.BlockId, stack: ExitStack) -> list[Any]:
    """Begin many streams that read a block, without reading from them; return the streams."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    stubs = [
        Stub(stack.enter_context(grpc.insecure_channel(address, options=options)), DATANODE)
        for _ in range(CHANNELS)
    ]
    wanted = datanode_pb2.ReadBlockRequest(block_id=block_id)
    return [stubs[n % CHANNELS].ReadBlock(wanted, timeout=WAIT_S) for n in range(STREAMS)]


def pid_of(running: Running | None) -> int:
    """Return the process id of a running program."""
    assert running is not None
    return running.pid


def peak_bytes(pid: int) -> int:
    """Return the peak resident memory of a process; 0 if the process has ended."""
    with suppress(FileNotFoundError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def limited_launch(groups: dict[str, Path], words: Sequence[str], log: IO[bytes]) -> Running:
    """Start a program of the cluster. The SCM and the limited agent are in their control groups
    from the start."""
    is_agent = words[0] == "agent.main" and f"datanode{LIMITED + 1}.toml" in words[-1]
    group = groups["scm"] if words[0] == "scm.main" else groups["agent"] if is_agent else None
    if group is None:
        return launched(words, log)
    enter = f'echo $$ > {group}/cgroup.procs; exec "$0" "$@"'
    program = [sys.executable, "-m", "tools.demo.child", str(os.getpid()), *words]
    return subprocess.Popen(
        ["/bin/sh", "-c", enter, *program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
    )


@contextmanager
def memory_group(name: str) -> Iterator[Path]:
    """Create a control group with the memory limit, yield its path, and remove it at the end."""
    is_v1 = GROUPS_V1.is_dir()
    group = (GROUPS_V1 if is_v1 else GROUPS_V2) / name
    try:
        group.mkdir()
    except OSError as error:
        raise subprocess.SubprocessError(f"no control group can be made here: {error}") from error
    try:
        limit = "memory.limit_in_bytes" if is_v1 else "memory.max"
        (group / limit).write_text(str(LIMIT_BYTES))
        yield group
    finally:
        group.rmdir()


def group_peak(group: Path) -> int:
    """Return the peak memory of a group, including its page cache."""
    for name in ("memory.max_usage_in_bytes", "memory.peak"):
        if (group / name).exists():
            return int((group / name).read_text())
    return 0
