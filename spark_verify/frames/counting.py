"""Counts rows in the written tables of a run, the same rows that every other reader sees.

Each function runs one query or a few; the answer fits into the driver at any cluster size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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
"""Columns of `health/` by which containers are grouped; few combinations of values occur."""

RECONCILE: Final = "reconcile"
BACKED_OFF: Final = "backed off"
REPLICA_CLASS: Final = "replica_class"
DISAGREEMENTS: Final = ("missing", "stray", "other_root", "stale")


@dataclass(frozen=True, slots=True)
class HealthGroup:
    """The number of containers with the same values in the columns of KIND."""

    state: str
    health_state: int
    is_qc_stuck: bool
    flags: int
    checksum_class: str
    is_known: bool
    why_not_compared: str | None
    scm_health_state: str | None
    count: int

    @property
    def disagreement(self) -> tuple[str, str] | None:
        """The control plane's state and the judge's; None if equal or the first is missing."""
        own = HealthState(self.health_state).name
        told = self.scm_health_state
        return None if told is None or told == own else (told, own)


def count_kinds(health: DataFrame) -> list[HealthGroup]:
    """Return the number of containers in each group."""
    query = (
        f"SELECT {', '.join(KIND)}, count(*) AS count FROM {{health}} GROUP BY {', '.join(KIND)}"  # noqa: S608 -- our names
    )
    return [
        HealthGroup(**row.asDict())
        for row in health.sparkSession.sql(query, health=health).collect()
    ]


def sample_ids(health: DataFrame, sample_max: int) -> Mapping[tuple[str, ...], list[int]]:
    """Return the lowest ids of known containers by label.

    Labels are ("flag", place), ("health", number), ("class", word), ("why", word) and ("scm",
    reported state, own state).
    """
    pairs = ", ".join(f"{int(state)}, {text(state.name)}" for state in HealthState)
    own = f"element_at(map({pairs}), health_state)"
    is_disputed = f"checksum_class IN ({texts(DISPUTED)})"
    labels = f"""
        flatten(array(
            transform(filter(sequence(0, {len(FLAGS) - 1}), i -> getbit(flags, i) = 1),
                i -> concat_ws(';', 'flag', i)),
            {_labels("flags <> 0", "'health', health_state")},
            {_labels(f"flags <> 0 AND {is_disputed}", "'class', checksum_class")},
            {_labels("why_not_compared IS NOT NULL", "'why', why_not_compared")},
            {_labels(f"scm_health_state <> {own}", f"'scm', scm_health_state, {own}")}
        ))"""
    labelled = health.filter("is_known").selectExpr("container_id", f"explode({labels}) AS label")
    return {tuple(label.split(";")): ids for label, ids in lowest_ids(labelled, sample_max).items()}


def _labels(condition: str, words: str) -> str:
    """Return SQL for a list with one label if the condition holds, else an empty list."""
    return f"if(coalesce({condition}, false), array(concat_ws(';', {words})), array())"


def lowest_ids(labelled: DataFrame, count: int) -> dict[str, list[int]]:
    """Return the `count` lowest container ids of each label."""
    query = f"""
        SELECT label, sort_array(collect_list(container_id)) AS ids FROM (
            SELECT label, container_id,
                row_number() OVER (PARTITION BY label ORDER BY container_id) AS place
            FROM {{rows}})
        WHERE place <= {count} GROUP BY label
        """  # noqa: S608 -- a number
    found = labelled.sparkSession.sql(query, rows=labelled).collect()
    return {row["label"]: list(row["ids"]) for row in found}


def count_actions(tables: Mapping[str, DataFrame]) -> dict[str, tuple[int, int]]:
    """Return the rows and bytes of each action in the plans.

    BACKED_OFF counts the backed-off rows of `divergent/`, REPLICA_CLASS the rows of
    `replica_class/`.
    """
    names = ("plan", "reconcile_plan", "divergent", "replica_class")
    query = f"""
        SELECT action, count(*) AS rows, sum(bytes_estimated) AS bytes FROM (
            SELECT action, bytes_estimated FROM {{plan}}
          UNION ALL SELECT {text(RECONCILE)}, bytes_estimated FROM {{reconcile_plan}}
          UNION ALL SELECT {text(BACKED_OFF)}, 0L FROM {{divergent}} WHERE is_backed_off
          UNION ALL SELECT {text(REPLICA_CLASS)}, 0L FROM {{replica_class}})
        GROUP BY action
        """  # noqa: S608 -- our names
    spark = tables["plan"].sparkSession
    given: dict[str, Any] = {name: tables[name] for name in names}
    counted = spark.sql(query, **given).collect()
    return {row["action"]: (row["rows"], row["bytes"]) for row in counted}


def count_disagreement(rows: DataFrame) -> dict[str, Any]:
    """Return the number of rows of `disagreement/` by kind.

    Rows that time may explain are counted separately.
    """
    found = rows.groupBy("kind", "is_later").count().collect()
    counts = dict.fromkeys(DISAGREEMENTS, 0)
    counts |= {row["kind"]: row["count"] for row in found if not row["is_later"]}
    later = sum(row["count"] for row in found if row["is_later"])
    return {"disagreement": counts, "disagreement_later": later}


def count_departures(judged: DataFrame) -> dict[str, list[int]]:
    """Return container counts for each datanode that is not in service.

    A list has one count for each reason in HELD_BY, then the containers in progress and those that
    would be locked out.
    """
    conditions = (
        *(f"held_by = {text(word)}" for word in HELD_BY),
        "is_in_progress",
        "is_locked_out",
    )
    columns = ", ".join(f"count_if({is_so}) AS c{i}" for i, is_so in enumerate(conditions))
    query = f"""
        SELECT datanode_id, {columns} FROM (SELECT inline(departures) FROM {{judged}})
        GROUP BY datanode_id
        """  # noqa: S608 -- our names
    rows = judged.sparkSession.sql(query, judged=judged).collect()
    return {row[0]: list(row[1:]) for row in rows}


def rows_of(table: DataFrame) -> list[dict[str, Any]]:
    """Return all rows of a small table."""
    return [row.asDict() for row in table.collect()]
