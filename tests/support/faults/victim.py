"""An agent in its own process that dies at a chosen step.

The nursery runs `main` with a config, the number of a step, and a file for the number of steps.
Step 0 means never; with -1, steps are not counted either. A step is one call that changes the disk:
a write, a sync, a rename, an LMDB put or commit. The agent counts steps with a profile function in
every thread and sends itself SIGKILL before the chosen one. Production code therefore has no hook.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from tests.support.nursery import Child, is_readable

WAIT_S = 60.0
LOG_SHOWN_BYTES = 4_000
STEPS = frozenset(
    {
        "commit", "delete", "fdatasync", "fsync", "ftruncate", "link", "mkdir", "put", "putmulti",
        "pwrite", "pwritev", "remove", "rename", "replace", "rmdir", "truncate", "unlink", "write",
    }
)  # fmt: skip
LMDB_TYPES = frozenset({"Transaction", "Cursor", "Environment"})


class Victim:
    """Starts one agent at a time, each with the step at which it kills itself."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("a+b")
        self._steps = log.with_name(f"{log.name}.steps")
        self._agent: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._agent is not None:
            self._agent.kill()
            self.wait()
        self._log.close()

    @property
    def pid(self) -> int:
        """The id of the running agent."""
        assert self._agent is not None
        return self._agent.pid

    def start(self, config: Path) -> str:
        """Start an agent that is not killed and whose steps are not counted; return its address."""
        address = self.begin(config)
        assert address is not None, f"the agent ended; its log ends: {self._log_end()}"
        return address

    def start_counted(self, config: Path) -> str:
        """Start an agent that is not killed and counts its steps; return its address."""
        address = self.start_doomed(config, kill_at=0)
        assert address is not None
        return address

    def start_doomed(self, config: Path, *, kill_at: int) -> str | None:
        """Start an agent; return its address, or None if it died before it listened."""
        address, ended = self._started(config, kill_at)
        if address is None:
            assert ended["signal"] == signal.SIGKILL, f"the agent ended by itself: {ended}"
        return address

    def begin(self, config: Path) -> str | None:
        """Start an agent whose steps are not counted. Return its address, or None if it ended
        before it listened, for any reason."""
        return self._started(config, kill_at=-1)[0]

    def _started(self, config: Path, kill_at: int) -> tuple[str | None, dict[str, int]]:
        """Start an agent. Return its address, or None and how it ended before it listened."""
        self._steps.unlink(missing_ok=True)
        words = (str(config), str(kill_at), str(self._steps))
        module = "tests.support.faults.victim"
        self._agent = Child(module, *words, stderr=self._log, text=False)
        output = self._agent.stdout
        assert is_readable(output.fileno(), WAIT_S), f"it hangs; its log ends: {self._log_end()}"
        line = output.readline()
        return (str(json.loads(line)["address"]), {}) if line else (None, self.wait())

    def stop(self) -> dict[str, int]:
        """Send SIGTERM to the agent; return its exit code or signal, and the number of its
        steps."""
        assert self._agent is not None
        self._agent.terminate()
        return self.wait()

    def wait(self) -> dict[str, int]:
        """Wait for the agent's end; return its exit code or signal, and the number of its steps (0
        if it was killed)."""
        assert self._agent is not None
        try:
            code = self._agent.wait(WAIT_S)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"it does not end; its log ends: {self._log_end()}") from error
        self._agent.stdout.close()
        self._agent = None
        steps = int(self._steps.read_text()) if self._steps.exists() else 0
        return {"signal": max(0, -code), "code": code, "steps": steps}

    def is_over(self, wait_s: float) -> bool:
        """Wait up to `wait_s` seconds for the agent's end; return whether it has ended."""
        assert self._agent is not None
        with suppress(subprocess.TimeoutExpired):
            self._agent.wait(wait_s)
            return True
        return False

    def _log_end(self) -> str:
        """Return the end of the agents' log, which shows what a hanging agent was doing."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LOG_SHOWN_BYTES))
        return self._log.read().decode(errors="replace")


class Killer:
    """Counts steps; kills this process before step `kill_at`."""

    def __init__(self, kill_at: int) -> None:
        self.kill_at = kill_at
        self.count = 0
        self.lock = threading.Lock()

    def __call__(self, _frame: FrameType, event: str, function: Any) -> None:
        """Count one call of a builtin, if it is a step."""
        if event != "c_call" or getattr(function, "__name__", "") not in STEPS:
            return
        owner = getattr(function, "__self__", None)
        if getattr(owner, "__name__", "") != "posix" and type(owner).__name__ not in LMDB_TYPES:
            return  # a dict's `put`, a str's `replace`, ...
        with self.lock:
            self.count += 1
            if self.count == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def write_config(path: Path, volume: Path, scm: str) -> Path:
    """Write a victim's config: one volume, one task thread, no background scan."""
    volume.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'[node]\nlisten = "127.0.0.1:0"\nscm = "{scm}"\n'
        f'[storage]\nvolumes = ["{volume}"]\nreserve_bytes = 0\n'
        "[scan]\nenabled = false\nwatch = false\n"
        "[tasks]\nthreads = 1\n"
        '[observe]\nlisten = ""\n'
    )
    return path


def steps_between(first: int, last: int, count: int) -> list[int]:
    """Return `count` steps to die at, evenly spread from `first` to `last`."""
    return sorted({first + (last - first) * number // (count - 1) for number in range(count)})


def main() -> None:
    """Run the agent, write the number of its steps, and end the process without another step."""
    from agent.main import run
    from suture.observe import logs
    from suture.runtime.stop_request import StopRequest

    config, kill_at, steps = sys.argv[1:]
    logs.configure()
    killer = Killer(int(kill_at))
    if killer.kill_at >= 0:
        threading.setprofile(killer)
        sys.setprofile(killer)
    code = 70
    try:
        stop = StopRequest()
        stop.on_signals()
        code = run(Path(config), stop)
    except BaseException:
        traceback.print_exc()  # the process ends below without flushing
        raise
    finally:
        sys.setprofile(None)
        Path(steps).write_text(str(killer.count))
        os._exit(code)
