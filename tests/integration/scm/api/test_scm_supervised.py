"""The control plane under systemd: what it says of itself, and when it is to be restarted."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from scm.api.calls.control import ControlPlane
from scm.main import TickThread
from suture.runtime.loop import QUIET_MAX_S, ProgressMarker
from suture.runtime.stop_request import StopRequest
from tests.support.clock import FakeClock

ROOT = Path(__file__).resolve().parents[4]
DEADLINE_S = 60


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The service manager's end of NOTIFY_SOCKET."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(DEADLINE_S)
        listening.bind(str(tmp_path / "notify"))
        yield listening


def test_scm_notifies_systemd_ready_and_watchdog_until_it_stops(
    tmp_path: Path, manager: socket.socket
) -> None:
    """Units ordered after it find it ready, and a process that hangs is restarted."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "100000",
    }
    command = [sys.executable, "-m", "scm.main", f"--data={tmp_path / 'data'}"]
    with subprocess.Popen(
        [*command, "--listen=127.0.0.1:0"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            said = [manager.recv(4096).decode()]
            while not said[-1].startswith("READY=1"):
                said.append(manager.recv(4096).decode())
            assert process.stdout is not None
            assert '"listening"' in process.stdout.readline()
            alive = manager.recv(4096).decode()
            process.terminate()
            while said[-1] != "STOPPING=1":
                said.append(manager.recv(4096).decode())
        finally:
            process.kill()

    assert "STATUS=serving on 127.0.0.1:" in next(text for text in said if "READY=1" in text)
    assert "WATCHDOG=1" == alive


class Slow:
    """A control plane with a tick that takes for ever, in portions; it ends when it is told to."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.seen: list[tuple[str, ...]] = []
        self.hung: Callable[[], tuple[str, ...]] = tuple

    def tick(self, pause: Callable[[float], object], _look_on: object) -> None:
        """Take ten portions, each nearly as long as any may be, and one that is longer."""
        for _ in range(10):
            self._clock.advance_s(QUIET_MAX_S - 1)
            self.seen.append(self.hung())
            pause(0.0)
        self._clock.advance_s(QUIET_MAX_S + 1)
        self.seen.append(self.hung())
        raise SystemExit


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_tick_that_moves_on_is_not_ended_and_one_that_hangs_is() -> None:
    """After a start a tick may have minutes of work. A restart would start it again, for ever."""
    clock = FakeClock()
    control, pulse = Slow(clock), ProgressMarker(clock)
    ticker = TickThread(
        cast(ControlPlane, control), interval_s=0.0, on_death=StopRequest(), pulse=pulse
    )
    control.hung = ticker.hung

    ticker.start()
    ticker.join(DEADLINE_S)

    assert [()] * 10 + [("ticker",)] == control.seen
