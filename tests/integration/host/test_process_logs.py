"""What goes to stderr of a process: JSON, also what nobody expected."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

DEFECTS = """
import gc, logging, threading, warnings
from suture.observe import logs
logs.configure("info")
logs.redirect_stderr()
class Breaks:
    def __del__(self):
        raise KeyError("while it is removed")
def dies():
    raise ValueError("in a thread\\nwith a second line")
made = threading.Thread(target=dies, name="reader")
made.start()
made.join()
Breaks()
gc.collect()
warnings.warn("is old", DeprecationWarning, stacklevel=1)
logging.getLogger("grpc._server").error("of a library %s", "x" * 10_000)
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("grpc._server").exception("caught")
raise RuntimeError("of the process")
"""


def test_uncaught_exceptions_and_warnings_are_logged_as_json() -> None:
    """Exceptions of the process, a thread and a destructor, a warning and library messages are
    one JSON line each, with the traceback inside, and nothing between them.
    """
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", DEFECTS], capture_output=True, text=True, check=False
    )

    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert 1 == done.returncode
    assert "" == done.stdout
    assert [
        "uncaught_exception",
        "uncaught_exception",
        *["library_message"] * 3,
        "uncaught_exception",
    ] == [line["event"] for line in lines]
    thread, removed, warned, said, caught, process = lines
    assert ("reader", "main", "main") == tuple(x["thread"] for x in (thread, removed, process))
    assert "ValueError" == thread["exception"][0]["exc_type"]
    assert "KeyError" == removed["exception"][0]["exc_type"]
    assert ("py.warnings", "grpc._server") == (warned["library"], said["library"])
    assert len(said["message"]) < 3_000
    assert "ZeroDivisionError" == caught["exception"][0]["exc_type"]
    assert "of the process" == process["exception"][0]["exc_value"]
    assert all(line["timestamp"] and line["level"] for line in lines)


UNHEARD = """
import sys
from suture.observe import logs
from suture.runtime.loop import Busy, NoMoreWork, WorkerLoop
logs.configure("info")
logs.redirect_stderr()
class Fails:
    name = "scan"
    count = 0
    def step(self):
        self.count += 1
        if self.count == 1:
            raise ValueError("as a worker does on a bad day")
        return NoMoreWork()
loop = WorkerLoop(Fails())
loop.start()
assert loop.join(30)
print(loop.status().state.value)
"""


def went_on(stderr: BinaryIO | int) -> str:
    """Return what became of a worker whose error could not be logged."""
    done = subprocess.run(
        [sys.executable, "-c", UNHEARD],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        check=False,
        env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
    )
    assert 0 == done.returncode
    return done.stdout.strip()


def test_a_full_disk_under_the_log_ends_no_worker() -> None:
    """A log on a full disk, as after a failed rotation, raised ENOSPC from each log call, and a
    thread that logged its error died of it.
    """
    with Path("/dev/full").open("wb") as full:
        assert "done" == went_on(full)


def test_a_log_that_nobody_reads_any_more_ends_no_worker() -> None:
    """
    The same with EPIPE, where a program read the log, and ended.
    """
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert "done" == went_on(writing)
    finally:
        os.close(writing)
