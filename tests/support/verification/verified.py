"""The results of a run of the Spark job for each container, read from the files that it wrote."""

import pyarrow.parquet as pq

from health.words import HealthState, flag_names
from spark_verify.pipeline import VerifyResult
from tests.support.verification.classifier import Opinion


def opinions(result: VerifyResult) -> dict[int, Opinion]:
    """Return the result for each container in a run's table `health`, by id. Fail if a container
    occurs twice."""
    lost: dict[int, set[str]] = {}
    for row in pq.read_table(result.table("replica_class")).to_pylist():
        if row["is_minority"]:
            lost.setdefault(row["container_id"], set()).add(row["datanode_id"])
    rows = pq.read_table(result.table("health")).to_pylist()
    found = {
        row["container_id"]: Opinion(
            row["checksum_class"],
            row["eligibility"],
            frozenset(lost.get(row["container_id"], ())),
            HealthState(row["health_state"]).name,
            row["queue"],
            row["is_qc_stuck"],
            frozenset(flag_names(row["flags"])),
        )
        for row in rows
    }
    assert len(found) == len(rows)
    return found
