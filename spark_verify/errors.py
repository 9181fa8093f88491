"""Errors that leave the job on purpose; each has a stable code and says what to do.

They stand here and not in `agent.errors` because the job runs where no agent is installed.
"""

import re
import sys
from typing import Final

RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(Error|RefusedError)\b: ")
"""How a traceback of Python ends; classes of Java have their package before them."""

MORE_MEMORY: Final = "has this machine too little memory? --master names a cluster of Spark"


class VerifyError(Exception):
    """Base of all; `code` is stable, `hint` tells a person what to do next."""

    code = "VERIFY_FAILED"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class SnapshotRefused(VerifyError):
    """The snapshot cannot be believed; nothing was written."""

    code = "SNAPSHOT_REFUSED"


class PathRefused(VerifyError):
    """An address names no file system that can be used."""

    code = "PLACE_REFUSED"


class OptionRefused(VerifyError):
    """An option is unknown, or has a value that it may not have."""

    code = "OPTION_REFUSED"


class FlagRefused(OptionRefused):
    """So has one of the command line: whoever typed it has to type it otherwise."""


class SparkRefused(VerifyError):
    """Spark does not start."""

    code = "SPARK_REFUSED"


class WorkersApart(VerifyError):
    """Rows that workers wrote are not where the driver looks for them; no run was finished."""

    code = "WORKERS_APART"


class CatalogRefused(VerifyError):
    """A catalog did not take the tables of a run, which is whole as files."""

    code = "CATALOG_REFUSED"


class RunConflict(VerifyError):
    """The run id is taken by a run of other input or other options."""

    code = "RUN_CONFLICT"


def failures() -> tuple[type[Exception], ...]:
    """Return what can go wrong in a run and is told in a line: the job's own errors, the file
    system's, too little memory, and where Spark was used what its actions raise (most errors are
    translated by PySpark, some come raw from Java)."""
    found: list[type[Exception]] = [VerifyError, OSError, MemoryError]
    if "pyspark" in sys.modules:
        from pyspark.errors import PySparkException

        found.append(PySparkException)
    if "py4j" in sys.modules:  # a Spark Connect client has no JVM beside it
        from py4j.protocol import Py4JError

        found.append(Py4JError)
    return tuple(found)


def describe_error(error: Exception) -> str:
    """Return in one line what went wrong: of what a task in Java or Python raised the innermost
    cause, not that some call failed."""
    if isinstance(error, MemoryError):
        return ": ".join(filter(None, ["too little memory", str(error).partition("\n")[0]]))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    if isinstance(error, VerifyError | OSError):
        return lines[0]
    causes = [line.partition("Caused by: ")[2] for line in lines if line.startswith("Caused by: ")]
    raised = [line for line in lines if RAISED.match(line)]
    thrown = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return (raised[-1:] or causes[-1:] or thrown[:1] or lines)[0]


def hint_of(error: Exception) -> str:
    """Return what a person can do next, if that is known."""
    hint: str = MORE_MEMORY if isinstance(error, MemoryError) else getattr(error, "hint", "")
    return hint
