"""A process that has imported the programs of this project. It forks itself whenever a test starts
one of the programs.

The reason is time: an agent needs more than a second of CPU time for its imports alone, and the
suite starts hundreds of agents. A forked program is a normal process with its own id, session,
files, environment, main thread, signals and exit code. The only difference is that its modules are
already imported. `test_agent_process.py`, `test_demo.py` and `tests/packaging` start programs
without forking.

    in    {"module": "agent.main", "arguments": [...], "environment": {...}, "directory": "..."}
          with the descriptors of stdin, stdout and stderr, and one for the result
    out   {"pid": 123} with the pidfd
"""

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import IO, Any, Final, Self

PROGRAMS: Final = (
    "agent.main",
    "scm.main",
    "tests.support.ozone.ozone_victim",
    "tests.support.simulation.simulated_scm",
    "tests.support.faults.store_victim",
    "tests.support.faults.victim",
)
LOST_FIELD: Final = "tests.support.wire.lost_field"
LATER: Final = ("grpc._channel", "grpc._server", "numpy.ma")  # imported on demand by others
ROOT: Final = Path(__file__).resolve().parents[2]
REQUEST_BYTES_MAX: Final = 1 << 20
DESCRIPTORS: Final = 4
PR_SET_PDEATHSIG: Final = 1
STOP_TIMEOUT_S: Final = 30.0


class Child:
    """A forked program, with the part of `subprocess.Popen` that tests use.

    It has a stdin if `stdin` is True. Its stderr is the file `stderr`. Without this file, stderr
    can be read like stdout. Both are text unless `text` is False.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        stdin: bool = False,
        stderr: IO[Any] | None = None,
        text: bool = True,
    ) -> None:
        self.args = [module, *arguments]
        self.returncode: int | None = None
        kind = "" if text else "b"
        mine_out, out = os.pipe()
        self.stdout: Any = os.fdopen(mine_out, f"r{kind}")
        self._ended, ended = os.pipe()
        theirs = [os.open(os.devnull, os.O_RDONLY), out, ended]
        self.stdin: Any = None
        if stdin:
            os.close(theirs[0])
            theirs[0], mine_in = os.pipe()
            self.stdin = os.fdopen(mine_in, f"w{kind}")
        self.stderr: Any = None
        if stderr is None:
            mine_err, err = os.pipe()
            self.stderr = os.fdopen(mine_err, f"r{kind}")
        else:
            err = os.dup(stderr.fileno())
        theirs.insert(2, err)
        try:
            self.pid, self._pidfd = nursery().fork(module, arguments, theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                file.close()
        self.wait()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended: its id may then belong to another
        process."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended between the two
                signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        """Send SIGTERM to the process."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the process's exit code, or minus the signal that ended it; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end of the process; return its exit code, or minus the signal that ended
        it."""
        if self.returncode is None:
            if not is_readable(self._ended, timeout_s):
                raise subprocess.TimeoutExpired(self.args, timeout_s or 0.0)
            said = os.read(self._ended, 64)
            assert said, f"the process that started {self.args} is gone"
            self.returncode = int(said)
            os.close(self._ended)
            os.close(self._pidfd)
        return self.returncode

    def communicate(self, timeout_s: float | None = None) -> tuple[Any, Any]:
        """Close stdin and wait for the end; return the output that was not read yet."""
        if self.stdin is not None:
            with suppress(BrokenPipeError):  # nothing reads the unsent bytes
                self.stdin.close()
        files = [file for file in (self.stdout, self.stderr) if file is not None]
        readers = ThreadPoolExecutor(len(files))
        reading = [readers.submit(file.read) for file in files]
        readers.shutdown(wait=False)
        self.wait(timeout_s)
        written = [done.result(timeout_s) for done in reading]
        for file in files:
            file.close()
        return written[0], written[1] if len(written) > 1 else None


def is_readable(descriptor: int, timeout_s: float | None) -> bool:
    """Wait until a descriptor has output or its end to read; return False after `timeout_s`."""
    waiting = select.poll()  # select() takes no descriptor above 1023
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(None if timeout_s is None else timeout_s * 1_000))


def forked(arguments: Sequence[str], log: IO[bytes]) -> Child:
    """Start a program by forking; return it. `Cluster` and `Process` accept this function as
    `launch`."""
    return Child(*arguments, stderr=log, text=False)


class Nursery:
    """Client of the nursery process, which forks programs."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.nursery", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def fork(
        self, module: str, arguments: Sequence[str], descriptors: Sequence[int]
    ) -> tuple[int, int]:
        """Start a program in this process's environment and directory; return its id and its
        pidfd."""
        request = {
            "module": module,
            "arguments": arguments,
            "environment": dict(os.environ),
            "directory": str(Path.cwd()),
        }
        with self._lock:
            socket.send_fds(self._line, [json.dumps(request).encode()], descriptors)
            answer, received, _, _ = socket.recv_fds(self._line, REQUEST_BYTES_MAX, 1)
        assert received, "the nursery is gone; why is on stderr"
        return int(json.loads(answer)["pid"]), received[0]

    def close(self) -> None:
        """End the process; programs that still run are killed."""
        self._line.close()
        self._process.wait(STOP_TIMEOUT_S)


@functools.cache
def nursery() -> Nursery:
    """Return the nursery of this process. The first call waits for its imports."""
    started = Nursery()
    atexit.register(started.close)
    return started


class Forker:
    """The code of the nursery process: one thread forks, and waits for the forked programs."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._running: dict[int, tuple[int, int]] = {}  # by pidfd: the id, and where to tell

    def next_child(self) -> dict[str, Any] | None:
        """Fork the requested programs. In each child, return the program to run. In the nursery,
        return None when no more requests can come."""
        while True:
            waiting = select.poll()
            for descriptor in (self._line.fileno(), *self._running):
                waiting.register(descriptor, select.POLLIN)
            ready = {descriptor for descriptor, _ in waiting.poll()}
            for pidfd in ready & self._running.keys():
                self._reap(pidfd)
            if self._line.fileno() not in ready:
                continue
            said, descriptors, _, _ = socket.recv_fds(self._line, REQUEST_BYTES_MAX, DESCRIPTORS)
            if not said:
                return None
            if self._is_child(descriptors):
                request: dict[str, Any] = json.loads(said)
                return request

    def _reap(self, pidfd: int) -> None:
        """Report the exit code of a program that has ended to its parent."""
        pid, ended = self._running.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        with suppress(BrokenPipeError):  # the parent no longer reads
            os.write(ended, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(ended)
        os.close(pidfd)

    def _is_child(self, descriptors: Sequence[int]) -> bool:
        """Fork; return True in the child, whose first descriptors are now the given ones."""
        *files, ended = descriptors
        parent = os.getpid()
        pid = os.fork()
        if pid:
            pidfd = os.pidfd_open(pid)
            self._running[pidfd] = (pid, ended)
            for descriptor in files:
                os.close(descriptor)
            socket.send_fds(self._line, [json.dumps({"pid": pid}).encode()], [pidfd])
            return False
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)
        os.setsid()
        for number, descriptor in enumerate(files):
            os.dup2(descriptor, number)
        self._line.close()
        others = [(pidfd, told) for pidfd, (_, told) in self._running.items()]
        for descriptor in (*descriptors, *(each for pair in others for each in pair)):
            os.close(descriptor)
        return True


def main() -> None:
    """Import all programs, and serve as the nursery. In a forked child, run its program."""
    before = dict(os.environ)
    for name in (*PROGRAMS, LOST_FIELD, *LATER):  # programs first: they set how loud gRPC is
        importlib.import_module(name)
    set_by_imports = {k: v for k, v in os.environ.items() if k not in before}
    gc.freeze()  # otherwise a child's first garbage collection copies every imported page
    child = Forker(socket.socket(fileno=int(sys.argv[1]))).next_child()
    if child is None:
        return
    os.environ.clear()
    os.environ.update(set_by_imports | child["environment"])
    os.chdir(child["directory"])
    sys.modules[LOST_FIELD].install()
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115 - what was opened before
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    module = sys.modules[child["module"]]
    sys.argv = [str(module.__file__), *child["arguments"]]
    module.main()


if __name__ == "__main__":
    main()
