"""Small expressions over arrays of replicas and pending ops, shared by all rules."""

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f

from spark_verify.rows import TREE_STATES

Test = Callable[[Column], Column]

COUNTED_STATES: Final = ("OPEN", "CLOSING", *TREE_STATES)
"""A replica being deleted, invalid or still arriving is no replica."""


def present() -> Column:
    """Return the replicas that count at all: not on a dead node, unless it is in maintenance."""
    return f.filter("replicas", lambda r: ~r["is_gone"] & r["state"].isin(*COUNTED_STATES))


def count(array: Column | str, test: Test) -> Column:
    """Return how many elements pass; an undecided test does not pass."""
    return f.size(f.filter(array, test))


def distinct(array: Column | str, value: Test) -> Column:
    """Return the distinct values of the elements."""
    return f.array_distinct(f.transform(array, value))


def highest(array: Column | str, value: Test, default: int) -> Column:
    """Return the highest known value of the elements, or `default`."""
    known = f.array_compact(f.transform(array, value))
    return f.coalesce(f.array_max(known), f.lit(default).cast("long"))


def is_unhealthy(replica: Column) -> Column:
    """Whether the datanode calls its replica UNHEALTHY."""
    return replica["state"] == "UNHEALTHY"


def bcsid(replica: Column) -> Column:
    """Return a replica's BCSID; one that is not known is below every known one."""
    return f.coalesce(replica["bcsid"], f.lit(-1).cast("long"))


def adds() -> Column:
    """Return the pending ADDs of a case."""
    return f.filter("ops", lambda o: o["op"] == "ADD")


def deletes() -> Column:
    """Return the pending DELETEs of a case."""
    return f.filter("ops", lambda o: o["op"] == "DELETE")


def deletes_of_healthy() -> Column:
    """Return the pending DELETEs except those on a datanode that holds an UNHEALTHY replica."""
    return f.filter(
        deletes(),
        lambda o: (
            ~f.exists("present", lambda r: is_unhealthy(r) & (r["datanode_id"] == o["datanode_id"]))
        ),
    )
