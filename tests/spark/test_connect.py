"""The job through Spark Connect: a client without a JVM, a server that is another process."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_verify.pipeline import VerifyRequest, verify
from tests.support.printed_json import document_in
from tests.support.verification.connect_server import connect_server
from tests.support.verification.snapshots import container, gather

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("spark")]


NAMED = """
from spark_verify.session import is_connected, open_session

session = open_session(row_count=0)
assert is_connected(session)
[row] = session.range(7).selectExpr("sum(id) AS total").collect()
print(row.total)
"""


def verified(snapshot: Path, out: Path, master: str) -> Path:
    """Run the command against a server and return its result's directory."""
    command = ["-m", "spark_verify.job", snapshot, "--out", out, "--json", "--master", master]
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    return Path(document_in(done.stdout)["path"])


def table(run: Path, name: str) -> list[dict[str, object]]:
    """Return all rows of a table of the result, in the order of their ids."""
    files = [str(path) for path in (run.parent / name / run.name).rglob("*.parquet")]
    rows: list[dict[str, object]] = pq.read_table(files, partitioning=None).to_pylist()
    return sorted(rows, key=lambda row: (row["container_id"], str(row)))


def test_a_connect_server_gives_the_same_result_as_a_session_of_our_own(tmp_path: Path) -> None:
    """
    Health, plans and classes are equal row by row, so nothing was used that Connect lacks; the
    server's workers got from the client what they do not have. A session uses the same server if
    only SPARK_REMOTE names it.
    """
    snapshot = gather(
        [
            container(1, "R CLOSED 10", "C=7x3"),
            container(2, "R CLOSED 10", "C=7x2 C=9"),
            container(3, "R CLOSED 10", "C=7x2 U=5*2"),
            container(4, "EC CLOSED", "C#1=7 C#1=9 C#2=2 C#3=3 C#4=4"),
            container(5, "R QUASI_CLOSED 10", "Q@10x2 Q@9"),
            container(6, "R CLOSED 10", "C=0x3"),
        ]
    ).write(tmp_path / "snapshot")
    own = verify(VerifyRequest(str(snapshot), tmp_path / "own")).directory

    with connect_server(tmp_path) as address:
        remote = verified(snapshot, tmp_path / "remote", address)
        named = subprocess.run(
            [sys.executable, "-c", NAMED],
            env={**os.environ, "SPARK_REMOTE": address},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    for name in ("health", "replica_class", "reconcile_plan", "plan"):
        assert table(own, name) == table(remote, name)
    assert (remote / "_SUCCESS").is_file()
    assert (0, "21\n") == (named.returncode, named.stdout), named.stderr
