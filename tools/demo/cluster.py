"""A real cluster on loopback: an SCM and some agents, each in its own process.

The kernel kills each process when the parent ends, so no process is left running.
"""

import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, Final, Protocol, Self

from suture.errors import Code, UnavailableError

CHECKOUT: Final = Path(__file__).resolve().parents[2]
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
FREE_PORTS: Final = (20_000, 32_768)  # 32768: net.ipv4.ip_local_port_range begins


class Running(Protocol):
    """A child process with the interface of subprocess.Popen."""

    pid: int
    stdout: IO[bytes] | None

    def poll(self) -> int | None:
        """Return the exit code of the process; None while it runs."""

    def wait(self, timeout_s: float | None = None, /) -> int:
        """Wait for the end of the process; return its exit code. Raise subprocess.TimeoutExpired if
        it does not end within `timeout_s`."""

    def send_signal(self, number: int, /) -> None:
        """Send a signal to the process, unless it has ended."""

    def terminate(self) -> None:
        """Send SIGTERM to the process."""

    def kill(self) -> None:
        """Send SIGKILL to the process."""


Launch = Callable[[Sequence[str], IO[bytes]], Running]
"""Function that starts a program: a module and its arguments. The caller reads its stdout; its
stderr goes to the given file."""


def launched(
    words: Sequence[str],
    log: IO[bytes],
    *,
    module: str = "tools.demo.child",
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Running:
    """Start `python -m WORD ...`. The process is killed when this process ends.

    `module` is the module that ensures this and then runs the program. `environment` is added to
    the environment of this process.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, str(os.getpid()), *words],
        env={**os.environ, "PYTHONPATH": _search_path(), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,  # a Ctrl-C at the terminal reaches only the parent
    )


def _search_path() -> str:
    """Return the search path with which a child finds this harness, which is not installed."""
    return os.pathsep.join(filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH"))))


@dataclass(slots=True)
class Process:
    """A child process: its command line, and the address at which it listens."""

    name: str
    arguments: Sequence[str]
    log: Path
    address: str = ""
    web_address: str = ""  # of its plain HTTP listener
    popen: Running | None = None
    launch: Launch = launched

    def start(self) -> None:
        """Start the process and wait until it reports its address."""
        self.spawn()
        self.wait_until_listening()

    def spawn(self) -> None:
        """Start the process without waiting until it serves."""
        with self.log.open("ab") as log:
            self.popen = self.launch(self.arguments, log)

    def wait_until_listening(self) -> None:
        """Wait for the line that the process prints when it serves, and record its addresses."""
        assert self.popen is not None
        assert self.popen.stdout is not None
        deadline_s = time.monotonic() + START_TIMEOUT_S
        line = b""
        while not line.endswith(b"\n"):
            left_s = deadline_s - time.monotonic()
            readable, _, _ = select.select([self.popen.stdout], [], [], max(0.0, left_s))
            piece = os.read(self.popen.stdout.fileno(), 4096) if readable else b""
            if not piece:
                raise UnavailableError(
                    Code.UNAVAILABLE, f"{self.name} did not start: {tail(self.log) or 'no output'}"
                )
            line += piece
        said = json.loads(line.splitlines()[0])
        self.address, self.web_address = str(said["address"]), str(said.get("web", ""))

    def stop(self) -> int | None:
        """Send SIGTERM to the process, and kill it if it does not end in time; return its exit
        code."""
        if self.popen is None:
            return None
        self.popen.terminate()
        return self.wait()

    def wait(self) -> int:
        """Wait up to STOP_TIMEOUT_S for the end of the process, then kill it; return its exit
        code."""
        assert self.popen is not None
        try:
            code = self.popen.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            code = self.popen.wait()
        if self.popen.stdout is not None:
            self.popen.stdout.close()
        self.popen = None
        return code

    def kill(self) -> None:
        """Send SIGKILL to the process, as in a crash, and wait for its end."""
        assert self.popen is not None
        self.popen.send_signal(signal.SIGKILL)
        self.wait()


def free_port() -> int:
    """Return a free TCP port on loopback that remains free across restarts.

    The port is below Linux's range of ephemeral ports. While a server is down, the kernel may give
    an ephemeral port to any socket. A restart would then fail, or a peer would call another
    process.
    """
    while True:
        port = random.randrange(*FREE_PORTS)  # noqa: S311 - no secret
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


def tail(path: Path, count: int = 5) -> str:
    """Return the last lines of a log, joined into one."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return " | ".join(lines[-count:])


@dataclass(slots=True)
class Cluster:
    """An SCM and `agents` agents with `volumes` volumes each, below `root`."""

    root: Path
    agents: int = 5
    volumes: int = 2
    container_bytes_max: int = 32 * 1024**2
    heartbeat_interval_ms: int = 500
    agent_sections: str = ""  # more TOML for every agent
    scm_settings: Mapping[str, int | str] = field(default_factory=dict)  # more options of the SCM
    launch: Launch = launched
    scm: Process = field(init=False)
    nodes: list[Process] = field(init=False)

    def __enter__(self) -> Self:
        self.root.mkdir(parents=True, exist_ok=True)
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the SCM, then all agents in parallel."""
        self.nodes = []
        self.scm = Process(
            "scm",
            self.scm_arguments(f"127.0.0.1:{free_port()}"),
            self.root / "scm.log",
            launch=self.launch,
        )
        self.scm.start()
        for index in range(self.agents):
            process = Process(
                f"datanode {index + 1}",
                ["agent.main", "--config", str(self.write_config(index))],
                self.root / f"datanode{index + 1}.log",
                launch=self.launch,
            )
            process.spawn()
            self.nodes.append(process)
        for process in self.nodes:
            process.wait_until_listening()

    def start_again(self, index: int) -> None:
        """Restart agent `index`, which was stopped or killed, at its earlier address."""
        process = self.nodes[index]
        self.write_config(index, process.address)
        process.start()

    def scm_arguments(self, listen: str) -> list[str]:
        """Return the command line of the SCM."""
        return [
            "scm.main",
            "--data",
            str(self.root / "scm"),
            "--listen",
            listen,
            "--set",
            f"heartbeat_interval_ms={self.heartbeat_interval_ms}",
            "--set",
            f"container_bytes_max={self.container_bytes_max}",
            *(f"--set={name}={value}" for name, value in self.scm_settings.items()),
        ]

    def volume_paths(self, index: int) -> list[Path]:
        """Return the volumes of agent `index`."""
        return [self.root / f"datanode{index + 1}" / f"vol{v + 1}" for v in range(self.volumes)]

    def write_config(self, index: int, listen: str = "") -> Path:
        """Write the config file of agent `index`, on a free port by default; return its path."""
        listen = listen or f"127.0.0.1:{free_port()}"
        paths = self.volume_paths(index)
        for path in paths:
            path.mkdir(parents=True, exist_ok=True)
        quoted = ", ".join(json.dumps(str(path)) for path in paths)
        config = self.root / f"datanode{index + 1}.toml"
        config.write_text(
            f'[node]\nlisten = "{listen}"\nscm = "{self.scm.address}"\nrack = "/rack{index % 2}"\n'
            f"[storage]\nvolumes = [{quoted}]\nreserve_bytes = 0\n"
            f'[observe]\nlisten = "127.0.0.1:0"\n{self.agent_sections}'
        )
        return config

    def stop(self) -> None:
        """Stop all processes; agents first, so that their last reports arrive."""
        running = [process for process in getattr(self, "nodes", []) if process.popen is not None]
        for process in running:
            assert process.popen is not None
            process.popen.terminate()
        for process in running:
            process.wait()
        scm = getattr(self, "scm", None)
        if scm is not None:
            scm.stop()
