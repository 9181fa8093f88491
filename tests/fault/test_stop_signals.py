"""Twenty thousand signals at random moments around the main thread's falling asleep."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.fault, pytest.mark.slow]

ROUNDS = 20_000
STORM = f"""
import os, random, signal, time
from suture.runtime.stop_request import StopRequest

reading, writing = os.pipe()
victim = os.getpid()
if os.fork() == 0:
    os.close(writing)
    chosen = random.Random(20261121)
    while os.read(reading, 1):
        until = time.perf_counter() + chosen.uniform(0, 60e-6)
        while time.perf_counter() < until:
            pass
        os.kill(victim, signal.SIGTERM)
    os._exit(0)

os.close(reading)
woken = 0
for _ in range({ROUNDS}):
    stop = StopRequest()
    stop.on_signals()
    os.write(writing, b"x")
    signal.alarm(20)  # ends the process when it stays deaf
    woken += stop.wait()
    signal.alarm(0)
    os.close(stop._reading)
    os.close(stop._writing)
print(woken, flush=True)
"""


def test_every_signal_wakes_the_wait() -> None:
    """No signal is lost between the last look and the sleep; with threading.Event some were."""
    result = subprocess.run(
        [sys.executable, "-c", STORM], capture_output=True, text=True, timeout=120, check=False
    )

    assert f"{ROUNDS}\n" == result.stdout, (result.returncode, result.stderr)
