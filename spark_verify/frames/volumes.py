"""Counts replicas, due scans, ages of scans, and replicas that differ from the majority, by volume.

replicas ─┬─► groupBy(datanode, volume) ─► volumes/
          └─► replicas without a root ─► rows of plan/ that order a scan
roots of classified and of obviously healthy containers ─► votes/
"""

from typing import Final

from pyspark.sql import DataFrame

from health.plan.plan_rows import SCAN_PRIORITY
from health.words import TREE_STATES
from spark_verify.input_columns import AHEAD_MAX_MS
from spark_verify.result_tables import AGE_DAYS
from spark_verify.sql_text import texts

DAY_MS: Final = 86_400_000
AGES: Final = (*(f"verified_{days}d" for days in AGE_DAYS), "verified_earlier")
"""Columns with the numbers of replicas by the age of their last full scan."""

SCANS_MAX: Final = 10_000
"""Maximum number of scans in a plan if most replicas need a scan. Agents also scan without a
plan."""


IS_IN_TREE: Final = f"state IN ({texts(TREE_STATES)})"
"""SQL condition: the state of the replica is one in which replicas have a tree."""

WANTS_SCAN: Final = f"({IS_IN_TREE} OR load_error IS NOT NULL) AND root IS NULL"
"""SQL condition: the replica has no root, and a scan could compute its root."""


def count_volumes(replicas: DataFrame, judged: DataFrame, as_of_ms: int) -> DataFrame:
    """Return one row of counts for each volume.

    `judged` are the containers that the functions in `health/` classify. In all other closed
    containers, all replicas with a root have the same root. The column `agreeing` counts these
    replicas, because each of them could have differed from the majority but did not.
    """
    newest_ms = as_of_ms + AHEAD_MAX_MS
    # Ignore the scan times of a datanode whose clock is far ahead.
    is_read = f"data_scan_at_ms IS NOT NULL AND data_scan_at_ms <= {newest_ms}"
    counted = {"in_tree": IS_IN_TREE, "scans": WANTS_SCAN}
    for name, days in zip(AGES, (*AGE_DAYS, None), strict=True):
        counted[name] = f"{IS_IN_TREE} AND data_scan_at_ms <= {newest_ms}"
        if days is not None:
            oldest_ms = as_of_ms - days * DAY_MS
            counted[name] += f" AND data_scan_at_ms >= {oldest_ms}"
            newest_ms = oldest_ms - 1
    counted["never_verified"] = f"{IS_IN_TREE} AND NOT ({is_read})"
    counted["agreeing"] = (
        "is_judged IS NULL AND replica_index = 0 AND state = 'CLOSED' AND root IS NOT NULL"
    )
    columns = ", ".join(f"count_if({is_so}) AS {name}" for name, is_so in counted.items())
    return replicas.sparkSession.sql(
        f"""
        SELECT datanode_id, volume_id, count(*) AS replicas, {columns},
            coalesce(sum(if({WANTS_SCAN}, used_bytes, 0L)), 0L) AS scan_bytes
        FROM {{replicas}} LEFT JOIN (SELECT container_id, true AS is_judged FROM {{judged}})
            USING (container_id)
        GROUP BY datanode_id, volume_id
        """,  # noqa: S608 -- no text of others
        replicas=replicas,
        judged=judged,
    )


def count_votes(judged: DataFrame, volumes: DataFrame) -> DataFrame:
    """Return how often the replicas of each volume could differ from the majority, and how often
    they did.

    A replica is counted as `exposed` if most other replicas of its container have the same root, so
    that a wrong root of this replica would be noticed. It is counted as `lost` if its root differs
    from theirs. There is one row for each volume and each software version of the other replicas
    (`against`). `judged` are the classified containers, and `volumes` the rows of the table
    `volumes/`.
    """
    return judged.sparkSession.sql(
        """
        SELECT datanode_id, volume_id, against, sum(exposed) AS exposed, sum(lost) AS lost FROM (
            SELECT datanode_id, volume_id, against, 1L AS exposed, CAST(is_lost AS BIGINT) AS lost
            FROM (SELECT inline(votes) FROM {judged})
          UNION ALL
            SELECT datanode_id, volume_id, '', agreeing, 0L FROM {volumes} WHERE agreeing > 0)
        GROUP BY datanode_id, volume_id, against
        """,
        judged=judged,
        volumes=volumes,
    )


def scans(replicas: DataFrame, *, listed_max: int | None) -> DataFrame:
    """Return the rows of the table `plan/` that request scans of the replicas that need one.

    If `listed_max` is set, return at most this number of rows, and the same number for each volume
    if possible.
    """
    wanted = replicas.filter(WANTS_SCAN)
    if listed_max is not None:
        turn = "row_number() OVER (PARTITION BY datanode_id, volume_id ORDER BY container_id)"
        wanted = wanted.selectExpr("*", f"{turn} AS turn")
        wanted = wanted.orderBy("turn", "container_id", "datanode_id").limit(listed_max)
    return wanted.selectExpr(
        "container_id",
        "'scan' AS action",
        f"{SCAN_PRIORITY} AS priority",
        "'root not known' AS reason",
        "CAST(array() AS ARRAY<STRING>) AS sources",
        "CAST(array() AS ARRAY<STRING>) AS doubts",
        "array(datanode_id) AS targets",
        "CAST(array() AS ARRAY<INT>) AS indexes",
        "0 AS copies",
        "false AS is_forced",
        "used_bytes AS bytes_estimated",
    )
