"""Errors of the Spark job, each with a stable code and a hint, and their text for the user."""

import re
import sys
from typing import Final

RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Refused)\b: ")
"""The last line of a Python traceback; Java classes have their package as a prefix."""

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
    """A rejected snapshot; nothing was written."""

    code = "SNAPSHOT_REFUSED"


class PathRefused(VerifyError):
    """An address without a usable file system."""

    code = "PLACE_REFUSED"


class OptionRefused(VerifyError):
    """An unknown option, or an invalid value of an option."""

    code = "OPTION_REFUSED"


class FlagRefused(OptionRefused):
    """An invalid command line, which the user must correct."""


class SparkRefused(VerifyError):
    """A failed start of Spark."""

    code = "SPARK_REFUSED"


class WorkersApart(VerifyError):
    """The driver does not find files that workers wrote; the run was not finished."""

    code = "WORKERS_APART"


class CatalogRefused(VerifyError):
    """A catalog that rejected the tables of a run; the run's files are complete."""

    code = "CATALOG_REFUSED"


class RunConflict(VerifyError):
    """A run with the same id and other input or options already exists."""

    code = "RUN_CONFLICT"


def failures() -> tuple[type[Exception], ...]:
    """Return the exceptions of a run that are reported in one line.

    These are the job's own errors, OSError, MemoryError and, if Spark is in use, the errors of its
    actions. PySpark translates most of those; some are raw Java errors.
    """
    found: list[type[Exception]] = [VerifyError, OSError, MemoryError]
    if "pyspark" in sys.modules:
        from pyspark.errors import PySparkException

        found.append(PySparkException)
    if "py4j" in sys.modules:  # a Spark Connect client has no JVM
        from py4j.protocol import Py4JError

        found.append(Py4JError)
    return tuple(found)


def describe_error(error: Exception) -> str:
    """Return an error in one line. If a task in Java or Python failed, this is the innermost cause,
    not the failed call.
    """
    if isinstance(error, MemoryError):
        return ": ".join(filter(None, ["too little memory", str(error).partition("\n")[0]]))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    if isinstance(error, VerifyError | OSError):
        return lines[0]
    causes = [line.partition("Caused by: ")[2] for line in lines if line.startswith("Caused by: ")]
    raised = [line for line in lines if RAISED.match(line)]
    thrown = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return (raised[-1:] or causes[-1:] or thrown[:1] or lines)[0][:REASON_CHARACTERS_MAX]


def hint_of(error: Exception) -> str:
    """Return the hint for the user, or "" if there is none."""
    hint: str = MORE_MEMORY if isinstance(error, MemoryError) else getattr(error, "hint", "")
    return hint
