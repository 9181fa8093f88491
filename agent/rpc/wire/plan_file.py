"""Reads the plan that the Spark verification wrote, for the SCM."""

import json
from pathlib import Path
from typing import Any, Final

from agent.config.given import ANSWER_BYTES_MAX, given_bytes
from agent.errors import Code, Refused
from agent.rpc.v1 import scm_pb2

UINT64 = 2**64

PLAN_ORDER: Final = [(name, "ascending") for name in ("priority", "container_id", "action")]
"""Of the rows: most urgent first, equal plans in equal order."""

SCAN: Final = "scan"  # rows that the SCM has no command for: who applies the plan asks the datanode


def read_plan(run: Path, *, only: str = "") -> scm_pb2.ApplyPlanRequest:
    """Read `reconcile_plan/` and `plan/` of a finished run directory, reconcile rows first.

    `only` is the action of the rows that are wanted; empty: all.
    Roots are signed in Parquet, which has no unsigned 64-bit type for Spark; here they become
    unsigned again. A run without `_SUCCESS` is unfinished and refused.
    """
    import pyarrow.parquet  # only where a plan is read: other commands begin without it

    if not (run / "_SUCCESS").is_file():
        raise Refused(
            Code.STALE_PLAN,
            f"{run} is no finished verification run: it has no _SUCCESS file",
            hint="give the directory that suture-verify printed",
        )
    try:
        manifest = json.loads(given_bytes(run / "manifest.json", bytes_max=ANSWER_BYTES_MAX))
        # Each of their files is sorted, but there may be several.
        reconciles, actions = (
            pyarrow.parquet.read_table(run / name).sort_by(PLAN_ORDER).to_pylist()
            for name in ("reconcile_plan", "plan")
        )
        rows = [plan_row(row) for row in reconciles] + [action_row(row) for row in actions]
        return scm_pb2.ApplyPlanRequest(
            snapshot_id=manifest["snapshot_id"],
            run_id=manifest["run_id"],
            rows=[row for row in rows if only in {"", row.action}],
        )
    except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException) as error:
        raise Refused(Code.MALFORMED_REQUEST, f"plan in {run} cannot be read: {error}") from error


def scope(run: Path) -> str:
    """Say what a partial run knows nothing of; empty for a run of all containers."""
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    nodes = manifest.get("changed_nodes", [])
    if not nodes:
        return ""
    return (
        f"partial plan: only containers with a replica on {', '.join(nodes)} were verified; "
        "nothing is said of the others"
    )


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
        expires_at_ms=row["expires_at_ms"],  # type: ignore[arg-type]
    )


def action_row(row: dict[str, Any]) -> scm_pb2.PlanRow:
    """Return one row of `plan/` as the wire carries it."""
    return scm_pb2.PlanRow(
        container_id=row["container_id"],
        action=row["action"],
        reason=row["reason"],
        sources=row["sources"],
        targets=row["targets"],
        copies=row["copies"],
        forced=row["is_forced"],
        expires_at_ms=row["expires_at_ms"],
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
