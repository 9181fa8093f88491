"""Modes of the files that commands create."""

import subprocess
import sys

import pytest

AFTER_A_COMMAND = """
import contextlib, os, sys
sys.argv = ["suture", "--version"]
os.umask({umask:#o})
from agent.cli.start import main
with contextlib.suppress(SystemExit):
    main()
print(f"{{os.umask(0):04o}}")
"""


@pytest.mark.parametrize(
    ("umask", "effective"), [(0, "0002"), (0o777, "0077"), (0o022, "0022"), (0o077, "0077")]
)
def test_commands_bound_the_umask_of_the_user(umask: int, effective: str) -> None:
    """The owner may use what a command creates, and other users may not change it."""
    code = AFTER_A_COMMAND.format(umask=umask)

    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert effective == ended.stdout.splitlines()[-1]
