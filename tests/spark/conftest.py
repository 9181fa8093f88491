"""One Spark session for all tests that need one."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest

JAVA_MIN = 17


def _java_version() -> int:
    java = shutil.which("java")
    if java is None:
        return 0
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    quoted = text.split('"')
    return int(quoted[1].split(".")[0]) if len(quoted) > 1 else 0


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """A session on two cores with four shuffle partitions."""
    pytest.importorskip("pyspark")
    if _java_version() < JAVA_MIN:
        pytest.skip(f"Spark needs Java {JAVA_MIN} or later; none is installed")
    from spark_verify.session import open_session

    session = open_session(replica_count=0, master="local[2]")
    session.conf.set("spark.sql.shuffle.partitions", "4")
    yield session
    session.stop()
