"""Java libraries that tests need, fetched by Maven."""

import shutil
import subprocess
from pathlib import Path

import pytest


def class_path(pom: Path, listed: Path) -> str:
    """Return the class path of the jars on which the project `pom` depends. Maven writes it to the
    file `listed`. Skip the test if the jars cannot be fetched."""
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        pytest.skip("what is fetched for this test needs Java and Maven")
    options = ["-q", "-B", "-f", str(pom), f"-Dmdep.outputFile={listed}"]
    done = subprocess.run(
        [maven, *options, "dependency:build-classpath"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        pytest.skip(f"Maven could not fetch {pom.name}: {said[0] if said else done.returncode}")
    return listed.read_text()
