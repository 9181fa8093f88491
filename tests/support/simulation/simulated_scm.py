"""The real control plane behind real gRPC, as a process whose time the simulation controls.

    python -m tests.support.simulation.simulated_scm DATA NOW_MS NAME=VALUE...

Everything is as in `suture-scm`, except the two clocks and the ticker. A line `advance MS` on stdin
moves the clocks forward and ticks once, as the ticker does in every heartbeat interval. The process
then prints the duration of the tick in seconds. Therefore, days pass in minutes, and the speed of
the machine has no effect: the same calls in the same order get the same answers.
"""

import json
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from scm.api.calls.control import ControlPlane
from scm.api.server import build_server
from scm.api.service import ScmService
from scm.state import options as scm_options
from scm.state.clock import ScmClock
from scm.state.database import StateDatabase
from suture.observe import logs
from tests.support.clock import FakeClock
from tests.support.nursery import Child


@dataclass
class SimulatedScm:
    """Client of the process, with its address and its term."""

    process: Child
    address: str
    term: int

    @classmethod
    def start(cls, data: Path, now_ms: int, settings: dict[str, int]) -> "SimulatedScm":
        """Start the process on `data`, and wait until it answers calls."""
        pairs = [f"{name}={value}" for name, value in settings.items()]
        with (data / "scm.log").open("a") as log:
            words = (str(data), str(now_ms), *pairs)
            module = "tests.support.simulation.simulated_scm"
            process = Child(module, *words, stdin=True, stderr=log)
        line = process.stdout.readline()
        assert line, f"the control plane did not start; see {data / 'scm.log'}"
        found = json.loads(line)
        return cls(process, found["address"], found["term"])

    def advance(self, milliseconds: int) -> float:
        """Move the clocks of the process forward, and tick; return the duration of the tick in
        seconds."""
        return self._asked(f"advance {milliseconds}")

    def cpu_s(self) -> float:
        """Return the CPU time that the process has used, in seconds."""
        return self._asked("cpu")

    def _asked(self, what: str) -> float:
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the control plane has died"
        return float(line)

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end of the process."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(30)


def main() -> None:
    """Serve until stdin ends."""
    _, data, now_ms, *pairs = sys.argv
    logs.configure("warning")
    options = scm_options.load(None, dict(pair.split("=") for pair in pairs))
    moved = FakeClock(int(now_ms))
    clock = ScmClock(moved.now_ms, moved.monotonic_s)
    state = StateDatabase.open(Path(data), map_bytes=options.lmdb_map_bytes)
    control = ControlPlane(
        state, clock=clock, options=options, snapshots_path=Path(data) / "snapshots"
    )
    with ThreadPoolExecutor(2) as executor:
        built = build_server(ScmService(control), "127.0.0.1:0", executor)
        built.server.start()
        _say(json.dumps({"address": built.address, "term": control.state.term}))
        for line in sys.stdin:
            if line == "cpu\n":
                _say(f"{time.process_time():.2f}")
                continue
            moved.advance_s(int(line.split()[1]) / 1000)
            started = time.perf_counter()
            control.tick()
            _say(f"{time.perf_counter() - started:.4f}")
        built.server.stop(None).wait()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
