"""Descriptors that the parent of a process closed."""

import subprocess
import sys

import pytest

CHECK = """
from suture.runtime.standard_streams import open_standard_streams
open_standard_streams()
import os, sys
with open(os.devnull) as file:
    assert file.fileno() > 2, file.fileno()
sys.stdout.write("text")
sys.stdout.flush()
sys.stderr.write("text")
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptor_is_taken_by_no_other_file(closed: str) -> None:
    """Otherwise the output of a library would be written into a database that became descriptor
    1.
    """
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", CHECK]

    assert 0 == subprocess.run(command, timeout=60, check=False).returncode
