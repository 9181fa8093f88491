"""An agent in its own process that dies at a chosen step (tests/support/faults/zygote.py)."""

import contextlib
import json
import os
import select
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.nursery import Child

WAIT_S = 60.0
LOG_SHOWN_BYTES = 4_000


class Zygote:
    """Starts one agent at a time, each with the step at which it kills itself."""

    def __init__(self, log: Path) -> None:
        self.pid = 0
        self._log = log.open("a+b")
        zygote = "tests.support.faults.zygote"
        self._process = Child(zygote, stdin=True, stderr=self._log, text=False)
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(WAIT_S)
        self._log.close()

    def start(self, config: Path) -> str:
        """Start an agent that is not killed and whose steps are not counted; return its address."""
        event = self._fork(config, kill_at=-1)
        assert event["event"] == "listening", f"{event}; its log ends: {self._log_end()}"
        return str(event["address"])

    def start_counted(self, config: Path) -> str:
        """Start an agent that is not killed and counts its steps; return its address."""
        address = self.start_doomed(config, kill_at=0)
        assert address is not None
        return address

    def start_doomed(self, config: Path, *, kill_at: int) -> str | None:
        """Start an agent; return its address, or None if it died before it listened."""
        event = self._fork(config, kill_at=kill_at)
        if event["event"] == "exited":
            assert event["signal"] == signal.SIGKILL, f"the agent ended by itself: {event}"
            return None
        return str(event["address"])

    def begin(self, config: Path) -> str | None:
        """Start an agent whose steps are not counted. Return its address, or None if it ended
        before it listened, for any reason."""
        event = self._fork(config, kill_at=-1)
        return None if event["event"] == "exited" else str(event["address"])

    def _fork(self, config: Path, *, kill_at: int) -> dict[str, Any]:
        """Start an agent; return its `listening` event, or how it ended before."""
        request = json.dumps({"config": str(config), "kill_at": kill_at}) + "\n"
        self._process.stdin.write(request.encode())
        self._process.stdin.flush()
        self.pid = self._next("forked")["pid"]
        event = self._next("listening", "exited")
        if event["event"] == "exited":
            self.pid = 0
        return event

    def stop(self) -> dict[str, Any]:
        """Ask the agent to stop; return how it ended, and after how many steps."""
        with contextlib.suppress(ProcessLookupError):  # it may be dead already
            os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def wait(self) -> dict[str, Any]:
        """Wait for the agent's end."""
        event = self._next("exited")
        self.pid = 0
        return event

    def is_over(self, wait_s: float) -> bool:
        """Wait a little for an event of the agent; return whether it has ended."""
        if b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], wait_s)
            if ready:
                self._rest += os.read(self._process.stdout.fileno(), 65536)
        return b'"exited"' in self._rest

    def _next(self, *names: str) -> dict[str, Any]:
        """Read events until one of `names` comes."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                event: dict[str, Any] = json.loads(line)
                if event["event"] in names:
                    return event
                continue
            ready, _, _ = select.select(
                [self._process.stdout], [], [], max(0.0, deadline_s - time.monotonic())
            )
            piece = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            assert piece, f"no {names} from the zygote; its log ends: {self._log_end()}"
            self._rest += piece

    def _log_end(self) -> str:
        """Return the end of the agents' log, which shows what a hanging agent was doing."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LOG_SHOWN_BYTES))
        return self._log.read().decode(errors="replace")


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
