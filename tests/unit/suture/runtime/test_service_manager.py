"""The supervisor, over a real socket."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from suture.runtime.loop import NoMoreWork, RetryAfter
from suture.runtime.sd_notify import SystemdNotifier, WatchdogWorker


class Listener:
    """The service manager's end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(10)
        self._socket.bind(address)

    def received(self) -> str:
        """Return the next datagram."""
        return self._socket.recv(4096).decode()

    def is_silent(self) -> bool:
        """Whether nothing was sent."""
        self._socket.setblocking(False)
        try:
            self._socket.recv(4096)
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    """Return a listener at `tmp_path/notify`."""
    result = Listener(str(tmp_path / "notify"))
    yield result
    result.close()


def supervisor(tmp_path: Path, **variables: str) -> SystemdNotifier:
    """Return the supervisor of a process that was started with these variables."""
    return SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "notify"), **variables})


class TestSupervisor:
    def test_ready_is_one_datagram_with_the_status(
        self, tmp_path: Path, listener: Listener
    ) -> None:
        """State and status are sent together, as sd_notify(3) requires."""
        supervisor(tmp_path).ready("serving 3 volumes")

        assert "READY=1\nSTATUS=serving 3 volumes" == listener.received()

    def test_stopping_and_alive_are_said(self, tmp_path: Path, listener: Listener) -> None:
        """The words are the protocol's."""
        supervisor(tmp_path).stopping()
        supervisor(tmp_path).alive()

        assert ["STOPPING=1", "WATCHDOG=1"] == [listener.received(), listener.received()]

    def test_a_status_cannot_smuggle_in_a_second_line(
        self, tmp_path: Path, listener: Listener
    ) -> None:
        """A line break in a text is no new variable."""
        supervisor(tmp_path).status("a\nMAINPID=1")

        assert "STATUS=a MAINPID=1" == listener.received()

    def test_an_abstract_socket_is_reached(self) -> None:
        """A leading @ is the abstract name space."""
        name = f"suture-test-{os.getpid()}"
        listener = Listener("\0" + name)

        SystemdNotifier({"NOTIFY_SOCKET": "@" + name}).ready()

        assert "READY=1" == listener.received()
        listener.close()

    def test_without_a_supervisor_nothing_happens(self) -> None:
        """An agent started by hand notifies no supervisor."""
        nobody = SystemdNotifier({})

        nobody.ready()

        assert not nobody.is_present
        assert 0.0 == nobody.watchdog_interval_s

    def test_a_dead_supervisor_does_no_harm(self, tmp_path: Path) -> None:
        """A socket without a listener is logged, and no error is raised."""
        supervisor(tmp_path).ready()

    def test_the_watchdog_is_fed_well_before_its_limit(self, tmp_path: Path) -> None:
        """Twice within the limit, so that one lost datagram is no death."""
        watched = supervisor(tmp_path, WATCHDOG_USEC="10000000")

        assert watched.watchdog_interval_s == pytest.approx(4.0)

    @pytest.mark.parametrize(
        "variables", [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "1"}]
    )
    def test_a_watchdog_that_is_not_ours_is_not_fed(
        self, tmp_path: Path, variables: dict[str, str]
    ) -> None:
        """No limit, nonsense, or another process's limit: no feeding."""
        assert 0.0 == supervisor(tmp_path, **variables).watchdog_interval_s


class TestWatchdogWorker:
    def test_feeds_while_all_progress(self, tmp_path: Path, listener: Listener) -> None:
        """Each step sends one datagram, and the next step is after the interval."""
        worker = WatchdogWorker(supervisor(tmp_path, WATCHDOG_USEC="10000000"), lambda: ())

        assert RetryAfter(4.0) == worker.step()
        assert "WATCHDOG=1" == listener.received()

    def test_starves_when_somebody_hangs(self, tmp_path: Path, listener: Listener) -> None:
        """A hung scanner lets the service manager restart us."""
        worker = WatchdogWorker(supervisor(tmp_path, WATCHDOG_USEC="10000000"), lambda: ("scan",))

        worker.step()

        assert listener.is_silent()

    def test_is_done_without_a_watchdog(self) -> None:
        """Nothing to feed, nothing to do."""
        assert NoMoreWork() == WatchdogWorker(SystemdNotifier({}), lambda: ()).step()
