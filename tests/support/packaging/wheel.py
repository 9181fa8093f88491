"""The wheel, built by the real builder from this tree."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BUILD_S_MAX = 60


def built_wheel(directory: Path) -> Path:
    """Build the wheel in a directory; return its path."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run(
        [*command, "--directory", directory],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=BUILD_S_MAX,
    )
    (path,) = directory.glob("suture-*.whl")
    return path


def metadata_of(wheel: Path) -> str:
    """Return the metadata of the wheel, which pip reads."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()
