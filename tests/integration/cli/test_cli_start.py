"""The first moment of `suture`."""

import signal
import subprocess
import sys

INTERRUPTED = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "agent.cli.terminal.output":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["suture", "--version"]
from agent.cli.start import main
main()
"""


def test_an_interrupt_while_it_imports_shows_no_traceback() -> None:
    """Ctrl-C in the first moment ends it as a shell expects: by the signal, and silently."""
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60
    )

    assert (-signal.SIGINT, "", "") == (ended.returncode, ended.stdout, ended.stderr)


def test_without_an_interrupt_it_runs() -> None:
    """The same beginning leads to the command line."""
    code = INTERRUPTED.replace("os.kill", "(lambda *_: None)")

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert 0 == ended.returncode
    assert ended.stdout.startswith("suture ")


NEEDLESS = ("typer", "pydantic", "numpy", "lmdb", "xxhash", "structlog", "prometheus_client")
IMPORTED = f"""
import sys
import agent.cli.main
from agent.cli.quick import plain
assert plain(["status", "--datanode", "127.0.0.1:1"]) and plain(["status", "--json"])
import agent.cli.inspect.status_tables, agent.rpc.calls.scm
print([name for name in {NEEDLESS} if name in sys.modules])
"""


def test_status_imports_nothing_that_it_does_not_use() -> None:
    """Half of a quick answer is importing: what parses unusual command lines, and what reads disks,
    is not on its way."""
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTED], capture_output=True, text=True, timeout=60
    )

    assert "[]\n" == ended.stdout, ended.stderr
