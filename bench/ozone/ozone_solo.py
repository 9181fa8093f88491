"""Compares Ozone's own scanner and the scrub on containers of a running real datanode.

The datanode comes from a built test cluster (`Solo`: Ozone's own volume, handler, dispatcher and
scanner, without SCM and OM). The limit of its scanner, 5 MiB/s, is lifted, and the scrub is
unpaced. Containers are written through the datanode's own protocol, and closed there.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import grpc
import numpy as np

from bench.measure import Measure
from bench.ozone import ozone_ends
from bench.ozone.ozone_world import CHUNK_BYTES, FIRST_ID, KIB, MIB, SMALL_BYTES
from bench.scans.bench_scan import GB, Run, in_turns, ratios, run_json
from merkle.checksum import window_checksums
from merkle.replica import ChecksumType
from ozone.disk.messages import BLOCK_DATA
from tests.support.faults.page_cache import drop_pages
from tests.support.waiting import wait_until

METHOD: Final = "/hadoop.hdds.datanode.XceiverClientProtocolService/send"
CREATE, PUT_BLOCK, WRITE_CHUNK, CLOSE = (1, 6), (6, 12), (12, 17), (17, 11)
"""Ozone's commands: the number of each command, and the number of the field with its body."""

SUCCESS: Final = b"\x18\x01"  # field 3 of an answer
ANSWER_HEAD: Final = 6  # command, an empty trace, result
WINDOW_BYTES: Final = 16 * KIB
START_S: Final = 120.0
SCAN_S: Final = 600.0
CALL_S: Final = 60.0
ROUNDS: Final = 3
WARM_UP, LARGE, SMALL = 1, 2, 3  # containers
LARGE_BLOCKS, CHUNKS_PER_BLOCK, SMALL_BLOCKS = 4, 32, 4_000
SITE: Final = """<configuration><property>
<name>hdds.container.scrub.on.demand.volume.bytes.per.second</name><value>1000000000000</value>
</property></configuration>"""


def scanners(built: Path) -> list[Measure]:
    """Measure a container of large blocks and one of small ones, both with CRC-32."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_OZONE_FOLDER")) as folder:
        root = Path(folder)
        with running(built, root):
            ports = properties(root)["dn0.ports"]
            port = ports.partition("STANDALONE=")[2].partition(",")[0].rstrip("]")
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                writer = Writer(channel, properties(root)["dn0.uuid"])
                writer.container(WARM_UP, 1, 1, CHUNK_BYTES)
                writer.container(LARGE, LARGE_BLOCKS, CHUNKS_PER_BLOCK, CHUNK_BYTES)
                writer.container(SMALL, SMALL_BLOCKS, 1, SMALL_BYTES)
            command(root, f"scan 0 {WARM_UP}")
            return [
                *compared(root, LARGE, f"chunks of {CHUNK_BYTES // MIB} MiB"),
                *compared(root, SMALL, f"blocks of {SMALL_BYTES} B"),
            ]


@contextmanager
def running(built: Path, root: Path) -> Iterator[None]:
    """Run the datanode during the block, and kill it afterwards."""
    (root / "site").mkdir()
    (root / "site" / "ozone-site.xml").write_text(SITE)
    class_path = f"{root}/site:{built}/classes:{(built / 'class-path').read_text().strip()}"
    opens = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in
             ("java.lang", "java.nio", "sun.nio.ch")]  # fmt: skip
    java = shutil.which("java")
    assert java is not None, "there is no java"
    options = ["-Xmx2g", "-XX:+UseSerialGC", f"-Dtest.build.data={root}/data",
               f"-Dinterop.log={root}/log.txt"]  # fmt: skip
    process = subprocess.Popen(
        [java, *options, *opens, "-cp", class_path, "interop.Solo", str(root)],
        cwd=root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until((root / "READY").exists, within_s=START_S)
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(CALL_S)


def properties(root: Path) -> dict[str, str]:
    """Return the properties that the datanode prints."""
    lines = (root / "cluster.properties").read_text().replace("\\", "").splitlines()
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def command(root: Path, words: str) -> str:
    """Send a command to the datanode through a file; return the answer."""
    name = f"{time.monotonic_ns()}"
    told, answer = root / "cmd" / f"{name}.tmp", root / "cmd" / f"{name}.out"
    told.write_text(words)
    told.rename(told.with_suffix(".cmd"))
    wait_until(answer.exists, within_s=SCAN_S)
    return answer.read_text()


class Writer:
    """A client that writes to one datanode without Ratis, as clients write erasure-coded keys."""

    def __init__(self, channel: grpc.Channel, datanode_id: str) -> None:
        self._send: Callable[..., Iterator[bytes]] = channel.stream_stream(METHOD)
        self._datanode_id = datanode_id

    def container(self, number: int, blocks: int, chunks: int, chunk_bytes: int) -> None:
        """Write a container of equal blocks, and close it."""
        generator = np.random.default_rng(number)
        self._call(number, CREATE, b"")
        for index in range(blocks):
            block = BLOCK_DATA(
                block_id={"container_id": number, "local_id": FIRST_ID + index, "bcsid": 0},
                metadata=[{"key": "TYPE", "value": "KEY"}],
                size=chunks * chunk_bytes,
            )
            name = field(1, block.block_id.SerializeToString())
            for place in range(chunks):
                data = generator.bytes(chunk_bytes)
                sums = window_checksums(ChecksumType.CRC32, WINDOW_BYTES, data)
                chunk = block.chunks.add(
                    name=f"{FIRST_ID + index}_chunk_{place + 1}",
                    offset=place * chunk_bytes,
                    length=chunk_bytes,
                    checksum_data={
                        "type": ChecksumType.CRC32,
                        "bytes_per_checksum": WINDOW_BYTES,
                        "checksums": [sums[at : at + 4] for at in range(0, len(sums), 4)],
                    },
                )
                told = field(2, chunk.SerializeToString())
                self._call(number, WRITE_CHUNK, name + told + field(3, data))
            self._call(number, PUT_BLOCK, field(1, block.SerializeToString()))
        self._call(number, CLOSE, b"")

    def _call(self, container: int, kind: tuple[int, int], content: bytes) -> None:
        what, place = kind
        request = (
            field(1, what)
            + field(3, container)
            + field(4, self._datanode_id.encode())
            + field(place, content)
        )
        answer: bytes = next(iter(self._send(iter([request]), timeout=CALL_S)))
        if SUCCESS not in answer[:ANSWER_HEAD]:
            raise RuntimeError(f"command {what} in container {container}: {answer[:300]!r}")


def field(number: int, value: int | bytes) -> bytes:
    """Return one field of a protobuf message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    """Return a number as a varint of protobuf."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def compared(root: Path, container: int, name: str) -> list[Measure]:
    """Scan a container alternately with the scrub and with Ozone's scanner; return the measures."""
    ours, theirs = in_turns(
        lambda: scrubbed(root, container), lambda: ozones(root, container), rounds=ROUNDS
    )
    found = ratios(ours, theirs, lambda run: run.bytes_per_s)
    speeds = [sorted(run.bytes_per_s for run in runs)[len(runs) // 2] for runs in (ours, theirs)]
    own, other = (speed / GB for speed in speeds)
    return [
        Measure(f"beside a datanode, {name}", own, "GB/s", f"{other:.4f}, Ozone's scanner"),
        Measure(
            f"the same ({min(found):.2f} to {max(found):.2f})",
            sorted(found)[len(found) // 2],
            "x",
            "Ozone's scanner",
        ),
    ]


def scrubbed(root: Path, container: int) -> Run:
    """Scrub the container of the running datanode."""
    data_dir = properties(root)["dn0.dirs"]
    words = ("beside", str(root), str(WARM_UP), data_dir, str(container))
    return run_json(sys.executable, "-m", ozone_ends.__name__, *words)


def ozones(root: Path, container: int) -> Run:
    """Make Ozone scan the container on demand; return the cost. Fail if Ozone finds a fault."""
    found = next((root / "dn0").glob(f"data-0/hdds/*/current/containerDir0/{container}/chunks"))
    files = list(found.iterdir())
    length_bytes = sum(path.stat().st_size for path in files)
    for path in files:  # Ozone reads through the page cache, which has the written data
        drop_pages(path)
    started = time.perf_counter()
    done = command(root, f"scan 0 {container}")
    wall_s = time.perf_counter() - started
    state = command(root, f"state 0 {container}")
    assert (done, state.split()[0]) == ("true", "CLOSED"), json.dumps([done, state])
    return Run(length_bytes, len(files), wall_s, 0.0)
