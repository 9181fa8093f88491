"""Runs one function in a forked process that may be killed, loop endlessly or exhaust memory.

The forking process has imported all slow modules and has started no thread. Therefore, a trial
takes only a few milliseconds, without the start of an interpreter.
"""

import contextlib
import os
import pickle
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MEMORY_MAX_BYTES = 3 * 1024**3
WAIT_S = 20
"""Seconds that a test may wait in addition to its CPU time. After that, it counts as hanging."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a process. `result` is what the function returned. If `timed_out`, the process was
    killed because its time was over. `fault` describes any other failure."""

    result: Any = None
    timed_out: bool = False
    fault: str = ""


def run(
    work: Callable[[], Any], *, is_quiet: bool = True, memory_max_bytes: int = MEMORY_MAX_BYTES
) -> Ended:
    """Run `work` in a forked process and return what it returned, which must be picklable."""
    receiver, sender = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(receiver)
        message = b""
        try:
            if is_quiet:
                silence()
            resource.setrlimit(resource.RLIMIT_AS, (memory_max_bytes, memory_max_bytes))
            message = pickle.dumps(Ended(work()))
        finally:  # whatever happened, the child must not continue in the parent's code
            message = message or pickle.dumps(Ended(fault=traceback.format_exc()))
            with contextlib.suppress(OSError), os.fdopen(sender, "wb") as stream:
                stream.write(message)
            os._exit(0)
    os.close(sender)
    with os.fdopen(receiver, "rb") as stream:
        message = stream.read()
    _, status = os.waitpid(process, 0)
    if message:
        ended = pickle.loads(message)  # noqa: S301  our own child wrote it
        assert isinstance(ended, Ended)
        return ended
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM):
        return Ended(timed_out=True)
    return Ended(fault=f"ended with status {status}")


def silence() -> None:
    """Discard the output of the process."""
    sys.stdout.flush()
    sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def limit_time(cpu_s: float) -> None:
    """Limit the processor time of the process from now on, and its total time."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, 6 * cpu_s + WAIT_S)
