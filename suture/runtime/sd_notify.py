"""Notifications to the service manager, by sd_notify.

The protocol of sd_notify(3) is one datagram of `KEY=VALUE` lines to the Unix socket that
NOTIFY_SOCKET names; a leading `@` means the abstract name space. Without NOTIFY_SOCKET there is no
supervisor, and this module sends nothing.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from suture.runtime.loop import NoMoreWork, RetryAfter, Step

WATCHDOG_SHARE: Final = 0.4  # fraction of the supervisor's limit, so that one datagram may be lost
STATUS_TEXT_MAX: Final = 200

log = structlog.get_logger()


class SystemdNotifier:
    """Notifies the service manager. Does nothing if there is none."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._address = _socket_address(environment.get("NOTIFY_SOCKET", ""))
        self._watchdog_us = _watchdog_us(environment)

    @property
    def is_present(self) -> bool:
        """Return whether there is a supervisor."""
        return bool(self._address)

    @property
    def watchdog_interval_s(self) -> float:
        """Interval in seconds at which WATCHDOG=1 must be sent; 0.0 if the supervisor has no
        watchdog."""
        return self._watchdog_us / 1e6 * WATCHDOG_SHARE if self.is_present else 0.0

    def ready(self, status: str = "") -> None:
        """Report that start-up is complete."""
        self._send("READY=1", status)

    def reloading(self) -> None:
        """Report that the options are being reloaded; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str = "") -> None:
        """Report that shutdown has begun."""
        self._send("STOPPING=1", status)

    def alive(self) -> None:
        """Send a watchdog signal: this process is alive."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Show one line in the service manager's status."""
        self._send("", text)

    def _send(self, state: str, status: str = "") -> None:
        if not self._address:
            return
        line = status.replace("\n", " ")[:STATUS_TEXT_MAX]
        lines = [part for part in (state, f"STATUS={line}" if line else "") if part]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.connect(self._address)
                sender.send("\n".join(lines).encode())
        except OSError as error:
            # The supervisor is optional: losing it must not stop a healthy agent.
            log.warning("supervisor_unreachable", address=self._address, error=str(error))


class WatchdogWorker:
    """Sends watchdog signals to the supervisor, but only while every loop makes progress.

    If a scan hangs in the kernel, the supervisor therefore restarts the agent. Without the
    watchdog, the scan could hang for weeks.
    """

    def __init__(self, supervisor: SystemdNotifier, stalled: Callable[[], tuple[str, ...]]) -> None:
        self._supervisor = supervisor
        self._stalled = stalled

    @property
    def name(self) -> str:
        """The worker's name."""
        return "watchdog"

    def step(self) -> Step:
        """Send one watchdog signal; if loops are stalled, log them instead."""
        interval_s = self._supervisor.watchdog_interval_s
        if not interval_s:
            return NoMoreWork()
        stalled = self._stalled()
        if stalled:
            log.error("watchdog_starved", stalled=list(stalled))
        else:
            self._supervisor.alive()
        return RetryAfter(interval_s)


def _socket_address(name: str) -> str:
    """Return the address in NOTIFY_SOCKET: a path, or `@name` in the abstract name space."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else ""


def _watchdog_us(environment: Mapping[str, str]) -> int:
    """Return WATCHDOG_USEC, in microseconds; 0 if it is unset or meant for another process."""
    value, process_id = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if process_id and process_id != str(os.getpid()):
        return 0
    return int(value) if value.isascii() and value.isdigit() else 0
