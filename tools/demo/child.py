"""Runs a program of this project in a process that is killed when its parent ends for any reason.

    python -m tools.demo.child PARENT agent.main --config ...

The child itself requests this from the kernel after its start, with prctl(2). The parent cannot do
this between fork and exec: its Python code would run in a copy of a process without the gRPC
threads, and would sometimes hang.
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
    """Make the kernel kill this process when its parent ends, and run the named module."""
    parent = int(sys.argv[1])
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the call
        sys.exit(ExitCode.FAILED)
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
