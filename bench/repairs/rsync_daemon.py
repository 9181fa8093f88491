"""Repairs files with rsync from an intact copy: a daemon serves the copy, and a client fetches.

The client compares checksums of all files (--checksum), since damage changes neither size nor time,
and writes deltas in place (--inplace). Its writes are synced once at the end, because its own
--fsync syncs file by file, which takes several times as long.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from suture.runtime.durable import sync_all
from tools.demo.cluster import free_port

PROGRAM: Final = "rsync"
MODULE: Final = "whole"
WAIT_S: Final = 10.0
LOOK_S: Final = 0.01
OPTIONS: Final = (
    *("--recursive", "--checksum", "--inplace", "--no-whole-file", "--stats"),
    "--no-human-readable",
)
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
OWN_TIMES, WITH_CHILDREN = 2, 4  # fields of /proc/PID/stat that are summed


@dataclass(frozen=True, slots=True)
class Fetched:
    """The cost of one run of the client. `processor_s` is the sum of both ends, `wire_bytes` the
    sum of both directions."""

    seconds: float
    processor_s: float
    wire_bytes: int


def processor_s(pid: int, fields: int = OWN_TIMES) -> float:
    """Return the processor seconds of a process so far."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, after_name[11 : 11 + fields])) / TICKS_PER_S


def rsync_program() -> str:
    """Return the path of rsync. Raise SubprocessError if it is absent."""
    found = shutil.which(PROGRAM)
    if found is None:
        raise subprocess.SubprocessError(
            "rsync is not installed: there is nothing to compare with (apt-get install rsync)"
        )
    return found


class RsyncDaemon:
    """Serves one folder on a free port of loopback."""

    def __init__(self, served: Path, folder: Path) -> None:
        self._program = rsync_program()
        self._port = free_port()
        config = folder / "rsyncd.conf"
        config.write_text(
            f"use chroot = no\nuid = {os.getuid()}\ngid = {os.getgid()}\n"
            f"[{MODULE}]\npath = {served}\nread only = yes\n"
        )
        self._daemon = subprocess.Popen(
            [
                *(self._program, "--daemon", "--no-detach", f"--config={config}"),
                *("--address=127.0.0.1", f"--port={self._port}"),
            ],
            start_new_session=True,  # as our agents have, see bench.clients.measured_process
        )

    def __enter__(self) -> Self:
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port)).close()
            except ConnectionRefusedError:
                if self._daemon.poll() is not None or time.monotonic() > deadline_s:
                    raise subprocess.SubprocessError("the rsync daemon does not serve") from None
                time.sleep(LOOK_S)
            else:
                return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._daemon.send_signal(signal.SIGTERM)
        self._daemon.wait()

    def fetch(self, target: Path) -> Fetched:
        """Make the files in `target` equal to the served files with rsync; return the cost."""
        before_s = processor_s(self._daemon.pid, WITH_CHILDREN)
        words = [self._program, *OPTIONS, f"rsync://127.0.0.1:{self._port}/{MODULE}/", f"{target}/"]
        begun_s = time.perf_counter()
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            told = client.stdout.read()
            _, status, usage = os.wait4(client.pid, 0)
            sync_all(target)
            taken_s = time.perf_counter() - begun_s
            client.returncode = os.waitstatus_to_exitcode(status)
        if client.returncode:
            raise subprocess.SubprocessError(f"rsync ended with {client.returncode}")
        self._wait_for_children()
        served_s = processor_s(self._daemon.pid, WITH_CHILDREN) - before_s
        sizes = re.findall(r"^Total bytes (?:sent|received): (\d+)", told, re.MULTILINE)
        assert len(sizes) == 2, told
        return Fetched(taken_s, usage.ru_utime + usage.ru_stime + served_s, sum(map(int, sizes)))

    def _wait_for_children(self) -> None:
        """Wait until the daemon has reaped the process that served the client, so that its time
        counts.
        """
        children = Path(f"/proc/{self._daemon.pid}/task/{self._daemon.pid}/children")
        deadline_s = time.monotonic() + WAIT_S
        while children.read_text().split() and time.monotonic() < deadline_s:
            time.sleep(LOOK_S)
