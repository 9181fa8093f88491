"""Errors of the Spark job, and their descriptions for the user. Each error has a fixed code and a
hint."""

import re
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from suture.errors import SutureError

RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Refused)\b: ")
"""Pattern of the last line of a Python traceback. The line has the class and the message of the
error."""

REASON_CHARACTERS_MAX: Final = 1500
"""Maximum number of characters of a library's error message that are printed."""

MORE_MEMORY: Final = "has this machine too little memory? --master names a cluster of Spark"


class VerifyError(Exception):
    """Base class of all errors of the job.

    `code` is the same in all versions. `hint` tells the user what to do next.
    """

    code = "VERIFY_FAILED"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class SnapshotRefused(VerifyError):
    """Raised if a snapshot cannot be used. Nothing was written."""

    code = "SNAPSHOT_REFUSED"


class PathRefused(VerifyError):
    """Raised if an address cannot be used, for example because its file system is not available."""

    code = "PLACE_REFUSED"


class FlagRefused(VerifyError):
    """Raised if the command line is invalid."""

    code = "OPTION_REFUSED"


class SparkRefused(VerifyError):
    """Raised if Spark cannot be started."""

    code = "SPARK_REFUSED"


class WorkersApart(VerifyError):
    """Raised if the driver does not find the files that the workers have written.

    The run is then incomplete.
    """

    code = "WORKERS_APART"


class CatalogRefused(VerifyError):
    """Raised if the tables of a run cannot be written to a catalog. The result in files is
    complete."""

    code = "CATALOG_REFUSED"


class RunConflict(VerifyError):
    """Raised if a run with the same id but other input or options exists."""

    code = "RUN_CONFLICT"


FAILURES: Final = (VerifyError, SutureError, OSError, MemoryError, PySparkException, Py4JError)
"""Exceptions that are reported to the user in one line. PySpark does not convert all errors of
Java."""


def describe_error(error: Exception) -> str:
    """Return a description of an error in one line.

    If a task of Spark has failed, the description is the message of the innermost cause.
    """
    if isinstance(error, MemoryError):
        return ": ".join(filter(None, ["too little memory", str(error).partition("\n")[0]]))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    if isinstance(error, VerifyError | SutureError | OSError):
        return lines[0]
    causes = [line.partition("Caused by: ")[2] for line in lines if line.startswith("Caused by: ")]
    raised = [line for line in lines if RAISED.match(line)]
    thrown = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return (raised[-1:] or causes[-1:] or thrown[:1] or lines)[0][:REASON_CHARACTERS_MAX]
