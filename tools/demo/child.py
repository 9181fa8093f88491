"""Runs one of our programs in a process that dies with its parent, whatever kills the parent.

    python -m tools.demo.child PARENT agent.main --config ...

The child asks the kernel itself, after its own start. Done between fork and exec instead, Python
code would run in a copy of a process whose gRPC threads are gone, and now and then hang there.
"""

import ctypes
import os
import runpy
import signal
import sys
from typing import Final

from agent.runtime.exits import Exit

PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Tie this process to its parent, then be the module that is named."""
    parent = int(sys.argv[1])
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        sys.exit(Exit.FAILED)
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
