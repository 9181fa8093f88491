"""A process that forks real agents which kill themselves at a chosen step.

    stdin   {"config": "...", "kill_at": N}
    stdout  {"event": "forked", "pid": P}        from the child
            {"event": "listening", ...}          from the agent
            {"event": "exited", "signal": S, "code": C, "steps": K}

`kill_at` 0 means never; with -1, steps are not counted either. A step is one call that changes the
disk: a write, a sync, a rename, an LMDB put or commit. The child counts steps with a profile
function in every thread and sends itself SIGKILL before step N. Production code therefore has no
hook. A forked agent need not import its modules again.
"""

import gc
import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType

STEPS = frozenset(
    {
        "commit", "delete", "fdatasync", "fsync", "ftruncate", "link", "mkdir", "put", "putmulti",
        "pwrite", "pwritev", "remove", "rename", "replace", "rmdir", "truncate", "unlink", "write",
    }
)  # fmt: skip
LMDB_TYPES = frozenset({"Transaction", "Cursor", "Environment"})


class Killer:
    """Counts steps; kills this process before step `kill_at`."""

    def __init__(self, kill_at: int, count_file: Path) -> None:
        self.kill_at = kill_at
        self.count = 0
        self.count_file = count_file
        self.lock = threading.Lock()

    def __call__(self, _frame: FrameType, event: str, function: object) -> None:
        """Count one call of a builtin, if it is a step."""
        if event != "c_call" or getattr(function, "__name__", "") not in STEPS:
            return
        owner = getattr(function, "__self__", None)
        if getattr(owner, "__name__", "") != "posix" and type(owner).__name__ not in LMDB_TYPES:
            return  # a dict's `put`, a str's `replace`, ...
        with self.lock:
            self.count += 1
            if self.count == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def child(config: str, kill_at: int, counts: int) -> None:
    """Run the agent in this forked process; never return."""
    from agent.main import run
    from suture.runtime.stop_request import StopRequest

    # The child prints this, because its line could otherwise come after the agent's.
    say({"event": "forked", "pid": os.getpid()})
    killer = Killer(kill_at, Path(config))
    if kill_at >= 0:
        threading.setprofile(killer)
        sys.setprofile(killer)
    code = 70
    try:
        stop = StopRequest()
        stop.on_signals()
        code = run(Path(config), stop)
    except BaseException:
        traceback.print_exc()  # the process ends below without flushing
        raise
    finally:
        sys.setprofile(None)
        os.write(counts, str(killer.count).encode())
        os._exit(code)


def main() -> None:
    """Serve requests until stdin ends."""
    import grpc._channel  # so that children have what is imported when it is needed
    import grpc._server  # noqa: F401
    import numpy.ma  # noqa: F401

    import agent.main  # noqa: F401 - so that children have it
    from suture.observe import logs

    logs.configure()
    gc.freeze()  # otherwise a child's first garbage collection copies every imported page

    for line in sys.stdin:
        request = json.loads(line)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            child(request["config"], request["kill_at"], writing)
        os.close(writing)
        _, status = os.waitpid(pid, 0)
        steps = os.read(reading, 32)
        os.close(reading)
        say(
            {
                "event": "exited",
                "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
                "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1,
                "steps": int(steps or b"0"),
            }
        )


def say(event: dict[str, object]) -> None:
    """Print one event in one write."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
