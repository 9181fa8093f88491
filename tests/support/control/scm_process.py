"""The real `suture-scm` as a process of its own, for tests that kill it."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.nursery import Child
from tests.support.printed_json import document_in

FAST = {
    "heartbeat_interval_ms": 50,
    "stale_after_ms": 5_000,
    "dead_after_ms": 10_000,
    "close_retry_ms": 50,
}


@dataclass
class ScmProcess:
    """A running control plane, and the line that it printed when it was ready."""

    process: Child
    listening: dict[str, Any]

    @classmethod
    def start(
        cls,
        data: Path,
        *,
        listen: str = "127.0.0.1:0",
        log_level: str = "info",
        arguments: Sequence[str] = (),
        **settings: int | str,
    ) -> "ScmProcess":
        """Start a control plane on `data`, and wait until it answers calls. If it logs much, the
        caller must read its stderr, because the process blocks when the pipe is full."""
        process = spawn(data, listen=listen, log_level=log_level, arguments=arguments, **settings)
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"suture-scm did not start: {process.stderr.read()}")
        return cls(process, document_in(line))

    @property
    def address(self) -> str:
        """The address of its server."""
        return str(self.listening["address"])

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end of the process."""
        self.process.send_signal(signal.SIGKILL)
        self._reap()

    def terminate(self) -> int:
        """Send SIGTERM, and wait for the end of the process; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._reap()

    def _reap(self) -> int:
        self.process.communicate(30)
        assert self.process.returncode is not None
        return self.process.returncode


def spawn(
    data: Path,
    *,
    listen: str = "127.0.0.1:0",
    log_level: str = "info",
    arguments: Sequence[str] = (),
    **settings: int | str,
) -> Child:
    """Start a control plane on `data` without waiting until it is ready."""
    pairs = [f"--set={name}={value}" for name, value in (FAST | settings).items()]
    own = (f"--data={data}", f"--listen={listen}", f"--log-level={log_level}")
    return Child("scm.main", *own, *pairs, *arguments)
