"""Counts rows of the tables that a run has written. Other readers of the result see the same rows.

Each function executes one query. Its result fits into the memory of the driver for any cluster.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame

from health.words import DISPUTED, HealthState, flag_names
from spark_verify.sql_text import text

KIND: Final = (
    "state, health_state, is_qc_stuck, flags, checksum_class, is_known, why_not_compared, "
    "scm_health_state"
)
"""Columns of the table `health/` by which containers are grouped and counted.

Only few combinations of their values occur.
"""

RECONCILE: Final = "reconcile"
BACKED_OFF: Final = "backed off"
REPLICA_CLASS: Final = "replica_class"
DISAGREEMENTS: Final = ("missing", "stray", "other_root", "stale")
LATER: Final = "later"

OWN_HEALTH_STATE: Final = "element_at(map({}), health_state)".format(
    ", ".join(f"{int(state)}, {text(state.name)}" for state in HealthState)
)
"""SQL for the name of the health state that this job has computed."""


def count_kinds(health: DataFrame) -> list[Any]:
    """Return one row for each combination of values in the columns of KIND.

    A row has these values, the number of containers, and the name of the health state that this job
    has computed (`own_health_state`).
    """
    query = f"""
        SELECT {KIND}, {OWN_HEALTH_STATE} AS own_health_state, count(*) AS containers
        FROM {{health}} GROUP BY {KIND}
        """  # noqa: S608 -- our names
    rows: list[Any] = health.sparkSession.sql(query, health=health).collect()
    return rows


def sample_ids(health: DataFrame, sample_max: int) -> dict[tuple[str, ...], list[int]]:
    """Return example containers for each label: the lowest `sample_max` container ids.

    A label is a property that containers have in common, as a tuple: ("flags", flag),
    ("health_states", state), ("checksum_classes", class), ("why", reason), or ("scm", state
    according to the SCM, state that this job has computed). Only containers that the SCM knows have
    labels.
    """
    query = f"""
        SELECT {KIND}, own, collect_list(container_id) AS ids FROM (
            SELECT *, row_number() OVER (PARTITION BY {KIND} ORDER BY container_id) AS place
            FROM (SELECT *, {OWN_HEALTH_STATE} AS own FROM {{health}} WHERE is_known)
            WHERE flags <> 0 OR why_not_compared IS NOT NULL OR scm_health_state <> own)
        WHERE place <= {sample_max} GROUP BY {KIND}, own
        """  # noqa: S608 -- our names and a number
    found = defaultdict[tuple[str, ...], list[int]](list)
    for kind in health.sparkSession.sql(query, health=health).collect():
        for label in _labels(kind):
            found[label] += kind.ids
    return {label: sorted(ids)[:sample_max] for label, ids in found.items()}


def _labels(kind: Any) -> Iterator[tuple[str, ...]]:
    """Yield the labels of the containers with these values in the columns of KIND."""
    yield from (("flags", name) for name in flag_names(kind.flags))
    if kind.flags:
        yield "health_states", kind.own
    if kind.flags and kind.checksum_class in DISPUTED:
        yield "checksum_classes", kind.checksum_class
    if kind.why_not_compared:
        yield "why", kind.why_not_compared
    if kind.scm_health_state not in (None, kind.own):
        yield "scm", kind.scm_health_state, kind.own


def backed_off_ids(divergent: DataFrame, count: int) -> list[int]:
    """Return the `count` lowest ids of the backed-off containers. In most runs, `count` is 0, which
    needs no query."""
    ids = divergent.filter("is_backed_off").select("container_id").sort("container_id")
    return [row.container_id for row in ids.limit(count).collect()] if count else []


def count_actions(tables: Mapping[str, DataFrame]) -> dict[str, tuple[int, int]]:
    """Return the number of rows and the sum of their bytes for each action in the plans.

    Some keys of the result are not actions. BACKED_OFF counts the rows of `divergent/` whose
    reconcile is delayed, and REPLICA_CLASS the rows of `replica_class/`. Each key in DISAGREEMENTS
    counts the rows of `disagreement/` of this kind. LATER counts the rows of `disagreement/` that
    may only be due to a difference in time (`is_later`). These rows are not counted under another
    key.
    """
    query = f"""
        SELECT action, count(*) AS rows, sum(bytes_estimated) AS bytes FROM (
            SELECT action, bytes_estimated FROM {{plan}}
          UNION ALL SELECT {text(RECONCILE)}, bytes_estimated FROM {{reconcile_plan}}
          UNION ALL SELECT {text(BACKED_OFF)}, 0L FROM {{divergent}} WHERE is_backed_off
          UNION ALL SELECT {text(REPLICA_CLASS)}, 0L FROM {{replica_class}}
          UNION ALL SELECT if(is_later, {text(LATER)}, kind), 0L FROM {{disagreement}})
        GROUP BY action
        """  # noqa: S608 -- our names
    given: dict[str, Any] = {**tables}
    counted = tables["plan"].sparkSession.sql(query, **given).collect()
    return {row["action"]: (row["rows"], row["bytes"]) for row in counted}
