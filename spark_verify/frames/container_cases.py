"""Collects all rows of a container into one row (a case) for the judge.

    container_id | containers: [struct] | replicas: [struct] | pending_ops: [struct]

`containers` is empty if only replicas or pending operations name the container.
"""

from pyspark.sql import DataFrame

from spark_verify.input_columns import CASE
from spark_verify.snapshot.tables import Snapshot


def cases(snapshot: Snapshot, wanted: DataFrame) -> DataFrame:
    """Return one row per container in `wanted`, with a single shuffle."""
    parts = []
    for name, schema in CASE.items():
        fields = ", ".join(column for column in schema.names if column != "container_id")
        own = snapshot[name].selectExpr("container_id", f"struct({fields}) AS {name}")
        parts.append(own.join(wanted, "container_id", "left_semi"))
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionByName(part, allowMissingColumns=True)
    lists = ", ".join(f"collect_list({name}) AS {name}" for name in CASE)
    return rows.sparkSession.sql(
        f"SELECT container_id, {lists} FROM {{rows}} GROUP BY container_id",  # noqa: S608 -- our names
        rows=rows,
    )
