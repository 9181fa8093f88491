"""What the README tells a newcomer to type works as it stands there."""

import os
import re
import socket
import subprocess
from pathlib import Path

from tests.support.packaging.commands import BIN

ROOT = Path(__file__).resolve().parents[2]
PORT = "127.0.0.1:9860"
SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def free_address() -> str:
    """Return an address of this machine that nobody serves just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_the_readme_stores_a_file_and_reads_it_back(tmp_path: Path) -> None:
    """
    The block that starts a cluster by hand runs; only its fixed port is exchanged for a free one.
    """
    (block,) = SHELL_BLOCK.findall((ROOT / "README.md").read_text())
    address = free_address()
    script = re.sub(r"\bsuture (put|ls|status|get)\b", rf"\g<0> --scm {PORT}", block)
    script = script.replace(PORT, address).replace("$PWD/.venv/bin", str(BIN))

    ran = subprocess.run(
        ["bash", "-uc", script],  # noqa: S607 - the user's shell
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert 0 == ran.returncode, ran.stdout + ran.stderr
    (copy,) = tmp_path.glob("*/README.md")
    assert (ROOT / "README.md").read_bytes() == copy.read_bytes()
    assert "README.md" in ran.stdout
