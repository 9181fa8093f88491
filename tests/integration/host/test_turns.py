"""Threads of both programs change places often, whatever else the interpreter does meanwhile."""

import subprocess
import sys
from pathlib import Path

import pytest

ASKED = (
    "import atexit, runpy, sys\n"
    "atexit.register(lambda: print(f'turn of {sys.getswitchinterval():g} s'))\n"
    "sys.argv = sys.argv[1:]\n"
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=False)\n"
)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("agent.main", ["--config", "absent.toml"]), ("scm.main", ["--data", ".", "--set", "absent"])],
)
def test_a_program_gives_its_threads_short_turns(
    module: str, arguments: list[str], tmp_path: Path
) -> None:
    """
    A tenth of Python's own, set before the options are read: nothing has started yet.
    """
    ended = subprocess.run(
        [sys.executable, "-c", ASKED, module, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert "absent" in ended.stderr
    assert "turn of 0.0005 s" == ended.stdout.splitlines()[-1]
