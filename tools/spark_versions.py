"""Run the vectors of the health rules on the lowest and the highest supported Spark.

    make spark-versions                     both
    make spark-versions SPARK=lowest        one of them

Each release is installed, with the oldest or the newest Arrow and pandas that it may have, into a
directory that precedes this environment's packages. Python and Java are those of this environment.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]

RELEASES: Final = {
    "lowest": ("pyspark==3.5.*", "pyarrow==17.*", "pandas==2.2.*"),
    "highest": ("pyspark", "pyarrow", "pandas<3"),  # the Connect client does not have pandas 3 yet
}
TESTS: Final = ("tests/spark/test_vectors.py", "tests/spark/test_judging.py")
IGNORED: Final = (
    "DeprecationWarning",
    "ResourceWarning",
    "pytest.PytestUnraisableExceptionWarning",
)
"""Warnings of Spark 3.5, which uses distutils and leaves sockets to the garbage collector."""

SHOW: Final = (
    "import pandas, pyarrow, pyspark, sys; print('Spark', pyspark.__version__, 'pyarrow', "
    "pyarrow.__version__, 'pandas', pandas.__version__, 'Python', sys.version.split()[0])"
)


def main(names: list[str]) -> int:
    """Run the tests on each release; return the number of releases on which they failed."""
    failed = 0
    for name in names or RELEASES:
        with tempfile.TemporaryDirectory(prefix="suture-spark-") as place:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", place]
            subprocess.run([*pip, *RELEASES[name]], check=True)
            environment = os.environ | {"PYTHONPATH": f"{place}{os.pathsep}{ROOT}"}
            subprocess.run([sys.executable, "-c", SHOW], env=environment, check=True)
            tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
            tests += [f"-Wignore::{warning}" for warning in IGNORED]
            failed += subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
