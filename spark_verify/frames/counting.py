"""Counts the rows in the written tables of a run. These are the rows that other readers see.

Each function runs a few queries, whose results fit into the driver at any cluster size.
"""

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import DataFrame

from health.words import DISPUTED, FLAGS, HealthState
from spark_verify.sql_text import text, texts

KIND: Final = (
    "state, health_state, is_qc_stuck, flags, checksum_class, is_known, why_not_compared, "
    "scm_health_state"
)
"""The columns of `health/` by which containers are grouped for counting. Only few combinations of
their values occur."""

RECONCILE: Final = "reconcile"
BACKED_OFF: Final = "backed off"
REPLICA_CLASS: Final = "replica_class"
DISAGREEMENTS: Final = ("missing", "stray", "other_root", "stale")
LATER: Final = "later"

OWN_HEALTH_STATE: Final = "element_at(map({}), health_state)".format(
    ", ".join(f"{int(state)}, {text(state.name)}" for state in HealthState)
)
"""SQL for the name of the judge's health state."""


def count_kinds(health: DataFrame) -> list[Any]:
    """Return one row per combination of values in the columns of KIND. The row has these values,
    the number of containers, and the name of the judge's health state (`own_health_state`)."""
    query = f"""
        SELECT {KIND}, {OWN_HEALTH_STATE} AS own_health_state, count(*) AS containers
        FROM {{health}} GROUP BY {KIND}
        """  # noqa: S608 -- our names
    rows: list[Any] = health.sparkSession.sql(query, health=health).collect()
    return rows


def sample_ids(
    health: DataFrame, divergent: DataFrame, sample_max: int
) -> dict[tuple[str, ...], list[int]]:
    """Return, for each label, the `sample_max` lowest ids of the containers with this label.

    Labels of known containers are ("flags", flag), ("health_states", state), ("checksum_classes",
    class), ("why", reason) and ("scm", reported state, own state). Backed-off containers have the
    label (BACKED_OFF,).
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
                WHERE flags <> 0 OR why_not_compared IS NOT NULL OR scm_health_state <> own
              UNION ALL
                SELECT container_id, {text(BACKED_OFF)} FROM {{divergent}} WHERE is_backed_off))
        WHERE place <= {sample_max} GROUP BY label
        """  # noqa: S608 -- our names and a number
    found = health.sparkSession.sql(query, health=health, divergent=divergent).collect()
    return {tuple(row["label"].split(";")): list(row["ids"]) for row in found}


def _labels(condition: str, words: str) -> str:
    """Return SQL for an array of labels: one label if the condition holds, no label otherwise."""
    return f"if(coalesce({condition}, false), array(concat_ws(';', {words})), array())"


def count_actions(tables: Mapping[str, DataFrame]) -> dict[str, tuple[int, int]]:
    """Return, for each action in the plans, the number of rows and the sum of their bytes.

    Some keys are not actions. BACKED_OFF counts the backed-off rows of `divergent/`, and
    REPLICA_CLASS the rows of `replica_class/`. Each key in DISAGREEMENTS counts the rows of that
    kind in `disagreement/`. LATER counts those rows that a difference in time may explain
    (`is_later`); they count under no other key.
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
