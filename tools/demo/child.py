"""Runs a program of ours in a process that dies with its parent, whatever kills the parent.

    python -m tools.demo.child PARENT agent.main --config ...

The child asks the kernel for that itself, after its own start. Between fork and exec, Python code
would run in a copy of a process without its gRPC threads, and hang there now and then.
"""

import ctypes
import os
import runpy
import signal
import sys
from typing import Final

from suture.runtime.exit_codes import ExitCode

PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Tie this process to its parent, then run the named module."""
    parent = int(sys.argv[1])
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the call
        sys.exit(ExitCode.FAILED)
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
