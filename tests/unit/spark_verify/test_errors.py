"""What is told of what went wrong, in one line."""

import pytest

from spark_verify.errors import SnapshotRefused, told

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
    """
    Not the call that happened to meet it.
    """
    assert line == told(error)
