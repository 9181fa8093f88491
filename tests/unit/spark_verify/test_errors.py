"""What is told of what went wrong, in one line."""

import sys
from pathlib import Path

import pyarrow as pa
import pytest

from spark_verify import commands, job
from spark_verify.errors import SnapshotRefused, describe_error
from tests.support.printed_json import document_in

JAVA = """An error occurred while calling o101.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult: Job aborted.
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:57)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""
PYTHON = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 4207, in invoke_udf
    func = read_udfs(
ModuleNotFoundError: No module named 'numpy'
 SQLSTATE: 38000
"""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError(JAVA), "java.io.IOException: No space left on device"),
        (RuntimeError(PYTHON), "ModuleNotFoundError: No module named 'numpy'"),
        (RuntimeError("[CANNOT_OPEN] no such server\nmore"), "[CANNOT_OPEN] no such server"),
        (RuntimeError(""), "RuntimeError('')"),
        (SnapshotRefused("too old\nValueError: x"), "too old"),
    ],
)
def test_the_cause_is_told(error: Exception, line: str) -> None:
    """The error gives the cause, and not the call that met it."""
    assert line == describe_error(error)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError("Unable to allocate 6.87 MiB"), "too little memory: Unable to allocate 6.87"),
        (pa.ArrowMemoryError("malloc of size 64 failed"), "too little memory: malloc of size 64"),
        (MemoryError(), "too little memory"),
    ],
)
def test_too_little_memory_is_told_in_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    message: str,
) -> None:
    """The JSON answer, which the control plane shows, had a piece of a traceback."""

    def verify(*_: object) -> None:
        raise error

    monkeypatch.setattr(commands, "verify", verify)
    monkeypatch.setattr(sys, "argv", ["suture-verify", "s", "--out", str(tmp_path), "--json"])
    with pytest.raises(SystemExit) as ended:
        job.main()

    said = capsys.readouterr()
    assert ended.value.code == 1
    answer = document_in(said.out)["error"]
    assert answer["message"].startswith(message)
    assert "--master names a cluster" in answer["hint"]
    assert said.err == f"suture-verify: {answer['message']}\nhint: {answer['hint']}\n"
