"""Checks whether Spark can run on this machine."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

JAVA_MIN = 17  # Spark 4 starts on nothing older


def skip_without_java() -> None:
    """Skip the calling test if there is no Java runtime that Spark accepts."""
    pytest.importorskip("pyspark")
    if java_version() < JAVA_MIN:
        pytest.skip(f"Spark needs Java {JAVA_MIN} or later; none is installed")


def java_version() -> int:
    """Return the major version of the Java that Spark would use; 0 if there is no Java."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or shutil.which(java) is None:
        return 0
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    quoted = text.split('"')
    return int(quoted[1].split(".")[0]) if len(quoted) > 1 else 0
