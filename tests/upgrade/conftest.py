"""Two versions of Suture in environments of their own: the newest release, and the checkout."""

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import pytest

from tests.support.packaging.checkouts import built, copied
from tools.demo.cluster import Running

RELEASED: Final = Path(__file__).parent / "released"
NEXT: Final = "9.9.9"  # the checkout may have the number of the newest release


@dataclass(frozen=True, slots=True)
class InstalledVersion:
    """A version in a virtual environment, whose programs are started by `launch`."""

    version: str
    python: Path

    def launch(self, words: Sequence[str], log: IO[bytes]) -> Running:
        """Start a program by the name of its module. It dies with this process."""
        command = ["setpriv", "--pdeathsig", "KILL", self.python, "-P", "-m", *words]
        return subprocess.Popen(
            command,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> InstalledVersion:
    """The newest released version."""
    wheel = max(RELEASED.glob("*.whl"), key=lambda path: numbers(path.name.split("-")[1]))
    return installed(wheel, tmp_path_factory.mktemp("released"))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> InstalledVersion:
    """The checkout, with another version number."""
    scratch = tmp_path_factory.mktemp("checkout")
    return installed(renumbered(scratch), scratch)


def installed(wheel: Path, scratch: Path) -> InstalledVersion:
    """Install a wheel; it uses the libraries of this environment."""
    environment = scratch / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin/python"
    run(sys.executable, "-m", "pip", "--quiet", "--python", python, "install", "--no-index",
        "--no-deps", "--no-compile", wheel)  # fmt: skip
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return InstalledVersion(wheel.name.split("-")[1], python)


def renumbered(scratch: Path) -> Path:
    """Build the wheel of the checkout as another version; return its path."""
    project = copied(scratch / "checkout") / "pyproject.toml"
    text, count = re.subn(
        r'^version = ".*"$', f'version = "{NEXT}"', project.read_text(), flags=re.MULTILINE
    )
    assert count == 1
    project.write_text(text)
    (wheel,) = (path for path in built(project.parent) if path.suffix == ".whl")
    return wheel


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, which order versions."""
    return tuple(map(int, version.split(".")))


def run(*command: str | Path) -> None:
    """Run a command."""
    subprocess.run(command, check=True, capture_output=True, timeout=120)
