"""Copies of the checkout, with only the files from which the wheel and the source distribution are
built."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.packaging.tidy import PRODUCT_PACKAGES

ROOT: Final = Path(__file__).resolve().parents[3]
FILES: Final = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")
BUILD_S: Final = 120


def copied(folder: Path) -> Path:
    """Copy the checkout into a folder that does not exist; return the folder."""
    for name in (*PRODUCT_PACKAGES, "proto"):
        shutil.copytree(
            ROOT / name,
            folder / name,
            ignore=shutil.ignore_patterns("__pycache__"),
            copy_function=shutil.copyfile,
        )
    for name in FILES:
        shutil.copyfile(ROOT / name, folder / name)
    return folder


def built(folder: Path) -> list[Path]:
    """Build the wheel and the source distribution of a checkout; return their paths."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build"],
        cwd=folder,
        check=True,
        capture_output=True,
        timeout=BUILD_S,
    )
    return sorted((folder / "dist").iterdir())
