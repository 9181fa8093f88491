"""The first moment of `suture`."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from agent.cli.main import run
from suture.runtime.exit_codes import ExitCode
from tests.support.printed_json import document_in

INTERRUPTED = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "agent.cli.program":
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_lets_it_tidy_up(number: signal.Signals, tmp_path: Path) -> None:
    """A signal removes the half-written hidden file, as Ctrl-C does."""
    code = (
        "import os, sys\n"
        "from agent.cli import start, main\n"
        "from suture.client.download import write_whole\n"
        "from pathlib import Path\n"
        "def pieces():\n"
        "    yield b'half'\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    yield b'whole'\n"
        f"path = Path({str(tmp_path / 'file')!r})\n"
        "main.prepared = lambda _: lambda: write_whole(path, pieces())\n"
        "start.main()\n"
    )

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert (ExitCode.INTERRUPTED, "", "") == (ended.returncode, ended.stdout, ended.stderr)
    assert [] == list(tmp_path.iterdir())


def printing(
    text: str, *, way: str = '"$@"', words: Sequence[str] = ("ls", "--json"), **environment: str
) -> CompletedProcess[str]:
    """Run a `suture` that prints `text` and ends well, as a shell starts it."""
    code = (
        "from agent.cli import start, main\n"
        "def command():\n"
        "    from suture.terminal.output import print_json, print_line\n"
        f"    {text}\n"
        "    return 0\n"
        "main.prepared = lambda _: command\n"
        "start.main()\n"
    )
    return subprocess.run(
        ["/bin/bash", "-c", way, "bash", sys.executable, "-c", code, *words],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_names_that_a_terminal_cannot_show_are_shown_as_codes() -> None:
    """The others of the list are shown, too."""
    ended = printing("print_line('\\u0431a')", PYTHONIOENCODING="ascii")

    assert (0, "\\u0431a\n") == (ended.returncode, ended.stdout), ended.stderr


def test_a_closed_output_is_for_nobody() -> None:
    """The command runs with closed outputs, as cron may start it."""
    ended = printing("print_json({})", way='"$@" >&- 2>&-')

    assert 0 == ended.returncode


def test_a_full_disk_below_the_output_is_said() -> None:
    """In one line, on stderr; not by two tracebacks."""
    ended = printing("print_json({'x': 'x' * 100_000})", way='"$@" > /dev/full')

    assert ExitCode.FAILED == ended.returncode
    assert "error: cannot write to stdout: No space left on device [IO_EXCEPTION]\n" == ended.stderr


GONE = "import select; at = select.poll(); at.register(1, 0); at.poll(60_000)"
"""What a command waits with until nobody reads its stdout."""


@pytest.mark.parametrize(
    "text",
    [
        "print_json({})",
        "print_line('a')",
        "print_json({'x': 'x' * 100_000})",
        "print_line('x' * 100_000)",
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [("ls", "--json"), ("ls",)])
def test_full_stdout_is_reported_for_short_output(
    text: str, unbuffered: str, words: Sequence[str]
) -> None:
    """Python flushes buffered output at exit and would print its own message. A full stdout is
    an error of this machine, not of the cluster.
    """
    ended = printing(text, way='"$@" > /dev/full', words=words, PYTHONUNBUFFERED=unbuffered)

    assert ExitCode.FAILED == ended.returncode
    assert "error: cannot write to stdout: No space left on device [IO_EXCEPTION]\n" == ended.stderr


def test_error_goes_to_stderr_if_stdout_cannot_be_written() -> None:
    """With --json, errors go to stdout. If stdout cannot be written, stderr gets the error."""
    code = (
        "from suture.errors import Code, RefusedError; "
        "raise RefusedError(Code.KEY_EXISTS, 'key f exists')"
    )
    full = printing(code, way='"$@" > /dev/full')
    gone = printing(f"{GONE}; {code}", way='"$@" | true; exit ${PIPESTATUS[0]}')

    assert [(ExitCode.FAILED, "error: key f exists [KEY_EXISTS]\n")] * 2 == [
        (ended.returncode, ended.stderr) for ended in (full, gone)
    ]


@pytest.mark.parametrize("text", ["print_json({})", "print_line('a')"])
def test_a_reader_that_goes_before_a_short_answer_is_no_success(text: str) -> None:
    """The exit code is that of a long answer, although the pipe closes before anything is
    written.
    """
    way = '"$@" | true; exit ${PIPESTATUS[0]}'
    ended = printing(f"{GONE}; {text}", way=way, PYTHONUNBUFFERED="")

    assert (ExitCode.READER_GONE, "") == (ended.returncode, ended.stderr)


def test_a_reader_that_goes_is_no_success() -> None:
    """A pipeline that checks all its parts gets an exit code for the closed reader."""
    ended = printing("print_json({'x': 'x' * 1_000_000})", way='"$@" | true; exit ${PIPESTATUS[0]}')

    assert (ExitCode.READER_GONE, "") == (ended.returncode, ended.stderr)


NEEDLESS = ("pydantic", "numpy", "lmdb", "xxhash", "structlog", "prometheus_client", "jinja2")
IMPORTED = f"""
import sys
import agent.cli.main
from agent.cli.program import prepare
prepare([])
assert "grpc" not in sys.modules
prepare(["status", "--json"])
import agent.cli.inspect.status_tables, suture.wire.clients.scm
print([name for name in {NEEDLESS} if name in sys.modules])
"""


def test_command_imports_only_the_modules_it_uses() -> None:
    """Imports take half the time of a short command. Help imports no command, and `status`
    imports nothing that reads disks or draws.
    """
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTED], capture_output=True, text=True, timeout=60
    )

    assert "[]\n" == ended.stdout, ended.stderr


UNUSED_BY_CLIENT = (
    *("numpy", "lmdb", "structlog", "pydantic", "yaml", "jinja2", "cryptography", "awscrt"),
    *("suture.ec.cell_codec", "suture.client.ecreader", "suture.client.ecwriter"),
    *("suture.wire.clients.peer", "merkle.tree"),
)
CLIENT_IMPORTED = f"""
import sys
import grpc
before = len(sys.modules)
from suture import Client
with Client("127.0.0.1:9"):
    print([name for name in {UNUSED_BY_CLIENT} if name in sys.modules])
    print(len(sys.modules) - before)
"""
CLIENT_MODULES_MAX = 180  # beside gRPC's: 60 of Suture, the others of protobuf and Python


def test_client_imports_only_the_modules_it_uses() -> None:
    """The import takes about twice as long as that of gRPC. Programs that store whole copies start
    without the codec, and all programs start without the columns of trees.
    """
    ended = subprocess.run(
        [sys.executable, "-c", CLIENT_IMPORTED], capture_output=True, text=True, timeout=60
    )

    assert not ended.stderr
    unused, count = ended.stdout.splitlines()
    assert "[]" == unused
    assert int(count) <= CLIENT_MODULES_MAX, "each module costs about a millisecond"


class TestCommandLine:
    def test_a_wrong_command_line_is_64(self) -> None:
        """
        Usage errors have an exit code of their own, apart from what commands return.
        """
        assert ExitCode.USAGE == run(["no-such-command"])
        assert ExitCode.USAGE == run(["tree", "not-a-number"])
        assert ExitCode.USAGE == run(["tree", "9" * 30])

    def test_a_wrong_command_line_is_one_document_too(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """
        A machine that asks for JSON gets JSON, whatever it got wrong.
        """
        assert ExitCode.USAGE == run(["tree", "not-a-number", "--json"])

        assert "USAGE" == document_in(capsys.readouterr().out)["error"]["code"]

    def test_no_command_at_all_is_answered_with_help(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """`suture` alone prints the usage, and no error."""
        assert ExitCode.USAGE == run([])

        assert capsys.readouterr().err.startswith("Usage: suture")

    def test_a_message_is_one_line_however_long(self, capsys: pytest.CaptureFixture[str]) -> None:
        """
        Errors are not folded at 80 columns: logs and grep see one line.
        """
        assert ExitCode.FAILED == run(["scm", "apply-plan", "/no/" + "long/" * 40])

        assert "[STALE_PLAN]" in capsys.readouterr().err.splitlines()[0]

    def test_no_scm_is_3(self, capsys: pytest.CaptureFixture[str]) -> None:
        """An unreachable SCM is worth a retry, which the exit code expresses."""
        assert ExitCode.UNAVAILABLE == run(["status", "--scm", "127.0.0.1:1"])

        assert "UNAVAILABLE" in capsys.readouterr().err
