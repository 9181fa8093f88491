"""Errors that leave the job on purpose; each has a stable code and says what to do.

They stand here and not in `agent.errors` because the job runs where no agent is installed.
"""

from typing import Final

from pyspark.errors import PySparkException


def _spark_errors() -> tuple[type[Exception], ...]:
    try:
        from py4j.protocol import Py4JError
    except ImportError:  # a Spark Connect client has no JVM beside it
        return (PySparkException,)
    return (PySparkException, Py4JError)


SPARK_ERRORS: Final = _spark_errors()
"""What a Spark action can raise: most errors are translated by PySpark, some come raw from Java."""


class VerifyError(Exception):
    """Base of all; `code` is stable, `hint` tells a person what to do next."""

    code = "VERIFY_FAILED"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class SnapshotRefused(VerifyError):
    """The snapshot cannot be believed; nothing was written."""

    code = "SNAPSHOT_REFUSED"


class RunConflict(VerifyError):
    """The run id is taken by a run of other input or other options."""

    code = "RUN_CONFLICT"
