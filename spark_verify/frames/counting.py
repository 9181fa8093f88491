"""Counts rows in the written tables of a run, which are the rows that other readers see.

Each function runs a few queries, whose results fit into the driver at any cluster size.
"""

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import DataFrame

from health.departure import HELD_BY
from health.words import DISPUTED, FLAGS, HealthState
from spark_verify.sql_text import text, texts

KIND: Final = (
    "state",
    "health_state",
    "is_qc_stuck",
    "flags",
    "checksum_class",
    "is_known",
    "why_not_compared",
    "scm_health_state",
)
"""Columns of `health/` to group containers by; few combinations of values occur."""

RECONCILE: Final = "reconcile"
BACKED_OFF: Final = "backed off"
REPLICA_CLASS: Final = "replica_class"
DISAGREEMENTS: Final = ("missing", "stray", "other_root", "stale")
LATER: Final = "later"

DEPARTURES: Final = {word: f"held_by = {text(word)}" for word in HELD_BY} | {
    "in_progress": "is_in_progress",
    "locked_out_now": "is_locked_out",
}
"""Counts of containers on a datanode that is not in service: for each reason that prevents its
departure, then containers in progress, and containers that could not be read without it.
"""

OWN_HEALTH_STATE: Final = "element_at(map({}), health_state)".format(
    ", ".join(f"{int(state)}, {text(state.name)}" for state in HealthState)
)
"""SQL for the name of the judge's health state."""


def count_kinds(health: DataFrame) -> list[Any]:
    """Return one row per combination of values in the columns of KIND, with the number of its
    containers, and the name of the judge's health state as `own_health_state`.
    """
    query = f"""
        SELECT {", ".join(KIND)}, {OWN_HEALTH_STATE} AS own_health_state, count(*) AS containers
        FROM {{health}} GROUP BY {", ".join(KIND)}
        """  # noqa: S608 -- our names
    rows: list[Any] = health.sparkSession.sql(query, health=health).collect()
    return rows


def sample_ids(
    health: DataFrame, divergent: DataFrame, sample_max: int
) -> dict[tuple[str, ...], list[int]]:
    """Return the `sample_max` lowest ids of containers by label.

    Labels of known containers are ("flags", flag), ("health_states", state), ("checksum_classes",
    class), ("why", reason) and ("scm", reported state, own state). Backed-off containers have the
    label BACKED_OFF.
    """
    flags = f"element_at(array({texts(FLAGS)}), i + 1)"
    is_disputed = f"checksum_class IN ({texts(DISPUTED)})"
    labels = f"""
        flatten(array(
            transform(filter(sequence(0, {len(FLAGS) - 1}), i -> getbit(flags, i) = 1),
                i -> concat_ws(';', 'flags', {flags})),
            {_labels("flags <> 0", "'health_states', own")},
            {_labels(f"flags <> 0 AND {is_disputed}", "'checksum_classes', checksum_class")},
            {_labels("why_not_compared IS NOT NULL", "'why', why_not_compared")},
            {_labels("scm_health_state <> own", "'scm', scm_health_state, own")}
        ))"""
    query = f"""
        SELECT label, sort_array(collect_list(container_id)) AS ids FROM (
            SELECT label, container_id,
                row_number() OVER (PARTITION BY label ORDER BY container_id) AS place
            FROM (
                SELECT container_id, explode({labels}) AS label
                FROM (SELECT *, {OWN_HEALTH_STATE} AS own FROM {{health}} WHERE is_known)
              UNION ALL
                SELECT container_id, {text(BACKED_OFF)} FROM {{divergent}} WHERE is_backed_off))
        WHERE place <= {sample_max} GROUP BY label
        """  # noqa: S608 -- our names and a number
    found = health.sparkSession.sql(query, health=health, divergent=divergent).collect()
    return {tuple(row["label"].split(";")): list(row["ids"]) for row in found}


def _labels(condition: str, words: str) -> str:
    """Return SQL for a list with one label if the condition holds, else an empty list."""
    return f"if(coalesce({condition}, false), array(concat_ws(';', {words})), array())"


def count_actions(tables: Mapping[str, DataFrame]) -> dict[str, tuple[int, int]]:
    """Return the rows and bytes of each action in the plans.

    BACKED_OFF counts the backed-off rows of `divergent/`, REPLICA_CLASS the rows of
    `replica_class/`. Each of DISAGREEMENTS counts the rows of its kind in `disagreement/`. It does
    not include rows that a difference in time may explain (`is_later`), which LATER counts.
    """
    names = ("plan", "reconcile_plan", "divergent", "replica_class", "disagreement")
    query = f"""
        SELECT action, count(*) AS rows, sum(bytes_estimated) AS bytes FROM (
            SELECT action, bytes_estimated FROM {{plan}}
          UNION ALL SELECT {text(RECONCILE)}, bytes_estimated FROM {{reconcile_plan}}
          UNION ALL SELECT {text(BACKED_OFF)}, 0L FROM {{divergent}} WHERE is_backed_off
          UNION ALL SELECT {text(REPLICA_CLASS)}, 0L FROM {{replica_class}}
          UNION ALL SELECT if(is_later, {text(LATER)}, kind), 0L FROM {{disagreement}})
        GROUP BY action
        """  # noqa: S608 -- our names
    spark = tables["plan"].sparkSession
    given: dict[str, Any] = {name: tables[name] for name in names}
    counted = spark.sql(query, **given).collect()
    return {row["action"]: (row["rows"], row["bytes"]) for row in counted}


def count_departures(judged: DataFrame) -> dict[str, dict[str, int]]:
    """Return the counts of DEPARTURES for each datanode that is not in service."""
    counts = ", ".join(f"count_if({is_so}) AS {name}" for name, is_so in DEPARTURES.items())
    query = f"""
        SELECT datanode_id, {counts} FROM (SELECT inline(departures) FROM {{judged}})
        GROUP BY datanode_id
        """  # noqa: S608 -- our names
    rows = judged.sparkSession.sql(query, judged=judged).collect()
    return {row["datanode_id"]: {name: row[name] for name in DEPARTURES} for row in rows}


def rows_of(table: DataFrame) -> list[dict[str, Any]]:
    """Return all rows of a small table."""
    return [row.asDict() for row in table.collect()]
