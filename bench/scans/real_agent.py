"""A real agent on a volume made by `bench.scans.scan_world`, and its scrub status."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.scans.limited_disk import LimitedDisk
from suture.wire.clients.peer import Peer
from suture.wire.v1 import datanode_pb2 as pb
from tools.demo.cluster import Process

TIMEOUT_S: Final = 60.0
NOBODY: Final = "127.0.0.1:9"  # the volume has cluster and datanode ids: no SCM is needed
LOOK_S: Final = 0.05
PAUSE_MS: Final = 3_600_000


class Agent:
    """An agent in a separate process; its background scan is controlled like by an operator."""

    def __init__(self, folder: Path, volume: Path, scan: str) -> None:
        """Write the config of an agent. `scan` is the content of the config section [scan]."""
        config = folder / "agent.toml"
        config.write_text(
            f'[node]\nlisten = "127.0.0.1:0"\nscm = "{NOBODY}"\n'
            f"[storage]\nvolumes = [{json.dumps(str(volume))}]\nreserve_bytes = 0\n"
            f"[scan]\nwatch = false\nstart_jitter_s = 0\n{scan}"
        )
        arguments = ["agent.main", "--log-level", "warning", "--config", str(config)]
        self.process = Process("agent", arguments, folder / "agent.log")

    @property
    def address(self) -> str:
        """Address of the agent."""
        return self.process.address

    def status(self) -> pb.VolumeScrub:
        """Return the scan progress of its only volume."""
        (volume,) = self._peer.scrub_status().volumes
        return volume

    def pause(self) -> None:
        """Pause the scan."""
        self._peer.control_scrub(pb.ControlScrubRequest(pause_ms=PAUSE_MS))

    def resume(self) -> None:
        """Resume the scan."""
        self._peer.control_scrub(pb.ControlScrubRequest(resume=True))

    def start(self, disk: LimitedDisk | None = None) -> None:
        """Start the agent. If `disk` is given, limit its reads from this disk."""
        self.process.start()
        assert self.process.popen is not None
        if disk is not None:
            disk.hold(self.process.popen.pid)
        self._peer = Peer(self.address)

    def stop(self) -> None:
        """Stop the agent."""
        self._peer.close()
        self.process.stop()


@contextmanager
def running(
    folder: Path, volume: Path, scan: str, disk: LimitedDisk | None = None
) -> Iterator[Agent]:
    """Run an agent during the block, and yield it."""
    agent = Agent(folder, volume, scan)
    agent.start(disk)
    try:
        yield agent
    finally:
        agent.stop()


@contextmanager
def clients(
    folder: Path, address: str, container: int, *, thread_count: int, reads_per_s: float
) -> Iterator[Path]:
    """Run `read_clients` during the block. Yield the path of its output, which has a line for each
    read.
    """
    path = folder / "reads"
    program = ("tools.demo.child", str(os.getpid()), "bench.scans.read_clients")
    arguments = [str(container), str(thread_count), str(reads_per_s)]
    with path.open("wb") as file:
        child = subprocess.Popen([sys.executable, "-m", *program, address, *arguments], stdout=file)
        try:
            deadline_s = time.monotonic() + TIMEOUT_S
            while not path.stat().st_size:
                if child.poll() is not None or time.monotonic() > deadline_s:
                    raise subprocess.SubprocessError("the clients do not read")
                time.sleep(LOOK_S)
            yield path
        finally:
            child.kill()
            child.wait()
