"""Reads the plan that the Spark verification wrote, for the SCM."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet

from agent.errors import Code, Refused
from agent.rpc.v1 import scm_pb2

UINT64 = 2**64


def read_plan(run: Path) -> scm_pb2.ApplyPlanRequest:
    """Read `reconcile_plan/` of a finished run directory.

    Roots are signed in Parquet, which has no unsigned 64-bit type for Spark; here they become
    unsigned again. A run without `_SUCCESS` is unfinished and refused.
    """
    if not (run / "_SUCCESS").is_file():
        raise Refused(
            Code.STALE_PLAN,
            f"{run} is no finished verification run: it has no _SUCCESS file",
            hint="give the directory that suture-verify printed",
        )
    try:
        manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
        rows = pyarrow.parquet.read_table(run / "reconcile_plan").to_pylist()
        return scm_pb2.ApplyPlanRequest(
            snapshot_id=manifest["snapshot_id"],
            run_id=manifest["run_id"],
            rows=[plan_row(row) for row in rows],
        )
    except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException) as error:
        raise Refused(Code.MALFORMED_REQUEST, f"plan in {run} cannot be read: {error}") from error


def plan_row(row: dict[str, object]) -> scm_pb2.PlanRow:
    """Return one row of the plan as the wire carries it."""
    replicas = row["replicas"]
    if not isinstance(replicas, list):
        raise TypeError(f"replicas of container {row['container_id']} is not a list")
    return scm_pb2.PlanRow(
        container_id=row["container_id"],  # type: ignore[arg-type]
        action=str(row["action"]),
        reason=str(row["reason"]),
        replicas=[plan_replica(replica) for replica in replicas],
    )


def plan_replica(replica: dict[str, object]) -> scm_pb2.PlanReplica:
    """Return one replica as the plan saw it."""
    result = scm_pb2.PlanReplica(
        datanode_id=str(replica["datanode_id"]),
        state=str(replica["state"]),
    )
    root = replica["root"]
    if isinstance(root, int):
        result.root = root % UINT64
    return result
