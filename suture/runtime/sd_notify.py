"""Sends notifications to the service manager (systemd).

The protocol (sd_notify(3)) is one datagram with lines `KEY=VALUE` to the Unix socket that the
environment variable NOTIFY_SOCKET names. A leading `@` means the abstract name space. Without
NOTIFY_SOCKET, there is no service manager, and this module sends nothing.
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
    """Sends notifications to the service manager. Without a service manager, its methods do
    nothing."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._address = _socket_address(environment.get("NOTIFY_SOCKET", ""))
        self._watchdog_us = _watchdog_us(environment)

    @property
    def is_present(self) -> bool:
        """True if there is a service manager."""
        return bool(self._address)

    @property
    def watchdog_interval_s(self) -> float:
        """Interval in seconds at which watchdog signals must be sent; 0.0 if the service manager
        expects none."""
        return self._watchdog_us / 1e6 * WATCHDOG_SHARE if self.is_present else 0.0

    def ready(self, status: str = "") -> None:
        """Report that the start is complete."""
        self._send("READY=1", status)

    def reloading(self) -> None:
        """Report that the options are being reloaded. A call of `ready` ends the reload."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str = "") -> None:
        """Report that the shutdown has begun."""
        self._send("STOPPING=1", status)

    def alive(self) -> None:
        """Send a watchdog signal, which says that this process makes progress."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Set the line of text that the service manager shows as status."""
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
    """Sends watchdog signals to the service manager while every worker loop makes progress.

    If a scan hangs in the kernel, the signals end, and the service manager restarts the agent.
    Otherwise, the scan could hang for weeks.
    """

    def __init__(self, supervisor: SystemdNotifier, stalled: Callable[[], tuple[str, ...]]) -> None:
        self._supervisor = supervisor
        self._stalled = stalled

    @property
    def name(self) -> str:
        """The worker's name."""
        return "watchdog"

    def step(self) -> Step:
        """Send one watchdog signal. If worker loops make no progress, log their names instead."""
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
    """Convert the value of NOTIFY_SOCKET to a socket address. Return "" if it is neither a path nor
    `@name`."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else ""


def _watchdog_us(environment: Mapping[str, str]) -> int:
    """Return the value of WATCHDOG_USEC in microseconds. Return 0 if it is not set, or set for
    another process."""
    value, process_id = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if process_id and process_id != str(os.getpid()):
        return 0
    return int(value) if value.isascii() and value.isdigit() else 0
