"""Errors of the Spark job, each with a stable code and a hint, and their text for the user."""

import re
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from suture.errors import SutureError

RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Refused)\b: ")
"""Pattern of the last line of a Python traceback, which has the class and the message of the
error."""

REASON_CHARACTERS_MAX: Final = 1500
"""Maximum length of a library's message in output."""

MORE_MEMORY: Final = "has this machine too little memory? --master names a cluster of Spark"


class VerifyError(Exception):
    """Base class of all errors; `code` is stable, `hint` tells the user what to do next."""

    code = "VERIFY_FAILED"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class SnapshotRefused(VerifyError):
    """Raised if a snapshot is rejected; nothing was written."""

    code = "SNAPSHOT_REFUSED"


class PathRefused(VerifyError):
    """Raised if an address has no usable file system."""

    code = "PLACE_REFUSED"


class FlagRefused(VerifyError):
    """Raised if the command line is invalid; the user must correct it."""

    code = "OPTION_REFUSED"


class SparkRefused(VerifyError):
    """Raised if Spark does not start."""

    code = "SPARK_REFUSED"


class WorkersApart(VerifyError):
    """Raised if the driver cannot find files that workers wrote. The run then remains
    unfinished."""

    code = "WORKERS_APART"


class CatalogRefused(VerifyError):
    """Raised if a catalog rejects the tables of a run. The result in files is complete
    nevertheless."""

    code = "CATALOG_REFUSED"


class RunConflict(VerifyError):
    """Raised if a run with the same id exists, but with other input or options."""

    code = "RUN_CONFLICT"


FAILURES: Final = (VerifyError, SutureError, OSError, MemoryError, PySparkException, Py4JError)
"""Exceptions of a run that are reported in one line. PySpark passes on some errors of Java."""


def describe_error(error: Exception) -> str:
    """Return a one-line description of an error. If a task in Java or Python failed, this is the
    message of the innermost cause, not that of the failed call."""
    if isinstance(error, MemoryError):
        return ": ".join(filter(None, ["too little memory", str(error).partition("\n")[0]]))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    if isinstance(error, VerifyError | SutureError | OSError):
        return lines[0]
    causes = [line.partition("Caused by: ")[2] for line in lines if line.startswith("Caused by: ")]
    raised = [line for line in lines if RAISED.match(line)]
    thrown = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return (raised[-1:] or causes[-1:] or thrown[:1] or lines)[0][:REASON_CHARACTERS_MAX]
