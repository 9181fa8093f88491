"""The run in numbers: what summary.json says, the report draws, and the text report prints."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from spark_verify.blame import Tally, suspects
from spark_verify.compare import CLASSES
from spark_verify.health import FLAGS, STATES, flag_bit
from spark_verify.rows import ACTIONS, AHEAD_MAX_MS, CONTAINER_STATES, TREE_STATES

SAMPLE_MAX: Final = 100
"""Container ids shown per state, as in Ozone's report."""

CLEAN: Final = 0
WORK_TO_DO: Final = 2
DATA_AT_RISK: Final = 3

DAY_MS: Final = 86_400_000
AGE_DAYS: Final = (1, 2, 4, 7, 14, 30)
"""Upper ends of the age classes; behind them stand "older" and "never"."""


def count_health(health: DataFrame) -> dict[str, Any]:
    """Return counters and samples over all containers. One grouped pass, then only samples."""
    rows = (
        health.groupBy(
            "state", "health_state", "is_qc_stuck", "flags", "checksum_class", "is_known"
        )
        .count()
        .collect()
    )
    known = [row for row in rows if row["is_known"]]
    states = dict.fromkeys(CONTAINER_STATES, 0)
    classes = dict.fromkeys(CLASSES, 0)
    health_states = dict.fromkeys(STATES, 0)
    flags = dict.fromkeys(FLAGS, 0)
    names = {number: name for name, number in STATES.items()}
    for row in known:
        states[row["state"]] += row["count"]
        classes[row["checksum_class"]] += row["count"]
        health_states[names[row["health_state"]]] += row["count"]
        if row["is_qc_stuck"] and row["health_state"] != STATES["QUASI_CLOSED_STUCK"]:
            health_states["QUASI_CLOSED_STUCK"] += row["count"]
        for name in FLAGS:
            flags[name] += row["count"] if row["flags"] & flag_bit(name) else 0
    return {
        "containers": sum(row["count"] for row in known),
        "unknown_containers": sum(row["count"] for row in rows if not row["is_known"]),
        "states": states,
        "health_states": health_states,
        "flags": flags,
        "flagged": sum(row["count"] for row in known if row["flags"]),
        "checksum_classes": classes,
    }


def samples(health: DataFrame, counts: dict[str, Any]) -> dict[str, dict[str, list[int]]]:
    """Return the first ids of every flag and of every class that has any, in one pass."""
    found: dict[str, dict[str, list[int]]] = {
        "flags": {name: [] for name, count in counts["flags"].items() if count},
        "health_states": {
            name: []
            for name, count in counts["health_states"].items()
            if count and name not in ("HEALTHY", "QUASI_CLOSED_STUCK")
        },
        "checksum_classes": {
            name: []
            for name in ("CONTRADICTORY", "MISMATCH_SPLIT", "MISMATCH_MINORITY")
            if counts["checksum_classes"][name]
        },
    }
    marks = [(kind, name, _has(kind, name)) for kind, names in found.items() for name in names]
    if not marks:
        return found
    own = f.array_compact(f.array(*[f.when(has, i) for i, (_, _, has) in enumerate(marks)]))
    marked = health.filter("is_known AND flags <> 0").select(
        "container_id", f.explode(own).alias("mark")
    )
    order = Window.partitionBy("mark").orderBy("container_id")
    first = marked.withColumn("place", f.row_number().over(order)).filter(
        f.col("place") <= SAMPLE_MAX
    )
    for row in sorted(first.select("mark", "container_id").collect()):
        kind, name, _ = marks[row["mark"]]
        found[kind][name].append(row["container_id"])
    return found


def _has(kind: str, name: str) -> Column:
    if kind == "flags":
        return f.col("flags").bitwiseAND(f.lit(flag_bit(name))) != 0
    if kind == "health_states":
        return f.col("health_state") == STATES[name]
    return f.col("checksum_class") == name


def count_plan(plan: DataFrame, reconcile: DataFrame) -> dict[str, dict[str, int]]:
    """Return rows and bytes per action."""
    both = plan.select("action", "bytes_estimated").unionByName(
        reconcile.select("action", "bytes_estimated")
    )
    rows = both.groupBy("action").agg(
        f.count(f.lit(1)).alias("n"), f.sum("bytes_estimated").alias("b")
    )
    found = {row["action"]: {"rows": row["n"], "bytes": row["b"]} for row in rows.collect()}
    return {a: found.get(a, {"rows": 0, "bytes": 0}) for a in ("reconcile", *ACTIONS)}


def count_volumes(replicas: DataFrame, as_of_ms: int) -> list[dict[str, Any]]:
    """Return per node and volume: replicas, known roots, and when they were last verified."""
    age = f.lit(as_of_ms) - f.col("data_scan_at_ms")
    in_tree = f.col("state").isin(*TREE_STATES)
    earliest = f.lit(-AHEAD_MAX_MS - 1).cast("long")
    ages, lower = [], earliest
    for i, days in enumerate(AGE_DAYS):
        upper = f.lit(days * DAY_MS).cast("long")
        ages.append(f.count_if(in_tree & (age > lower) & (age <= upper)).alias(f"age_{i}"))
        lower = upper
    ages.append(f.count_if(in_tree & (age > lower)).alias(f"age_{len(AGE_DAYS)}"))
    # A datanode whose clock is far ahead says nothing about when it read.
    never = f.col("data_scan_at_ms").isNull() | (age <= earliest)
    ages.append(f.count_if(in_tree & never).alias("never"))
    rows = (
        replicas.groupBy("datanode_id", "volume_id")
        .agg(
            f.count(f.lit(1)).alias("replicas"),
            f.count_if(in_tree).alias("tree_states"),
            f.count_if(in_tree & f.col("root").isNotNull()).alias("known"),
            *ages,
        )
        .collect()
    )
    return [row.asDict() for row in rows]


def verification_ages(volumes: list[dict[str, Any]]) -> dict[str, int]:
    """Return the histogram of verification age over all replicas that have a tree."""
    labels = [f"<= {days} d" for days in AGE_DAYS] + [f"> {AGE_DAYS[-1]} d"]
    counts = {label: sum(v[f"age_{i}"] for v in volumes) for i, label in enumerate(labels)}
    return counts | {"never": sum(v["never"] for v in volumes)}


def count_lost(judged: DataFrame) -> dict[tuple[str, str], int]:
    """Return how many replicas of each node and volume lost the vote."""
    lost = f.filter("known", lambda r: f.array_contains("minority", r["datanode_id"]))
    rows = (
        judged.filter(f.size("minority") > 0)
        .select(f.explode(lost).alias("r"))
        .groupBy("r.datanode_id", "r.volume_id")
        .count()
        .collect()
    )
    return {(row["datanode_id"], row["volume_id"]): row["count"] for row in rows}


def blame(
    volumes: list[dict[str, Any]], lost: dict[tuple[str, str], int], nodes: list[Any]
) -> list[dict[str, Any]]:
    """Return the suspects among nodes, volumes, versions and racks."""
    about = {node["datanode_id"]: node for node in nodes}
    tallies: dict[tuple[str, str], list[int]] = {}
    for volume in volumes:
        datanode_id = volume["datanode_id"]
        node = about[datanode_id]
        counted = lost.get((datanode_id, volume["volume_id"]), 0), volume["known"]
        for attribute, value in (
            ("datanode", datanode_id),
            ("volume", f"{datanode_id} {volume['volume_id']}"),
            ("version", node["version"]),
            ("rack", node["rack"]),
        ):
            tally = tallies.setdefault((attribute, value), [0, 0])
            tally[0] += counted[0]
            tally[1] += counted[1]
    ranked = suspects(Tally(a, v, *counts) for (a, v), counts in sorted(tallies.items()))
    return [asdict(suspect) for suspect in ranked]


def exit_code(summary: dict[str, Any]) -> int:
    """Return the process exit code that the numbers ask for. A missing scan is no work for anyone:
    the scanners come by on their own."""
    if summary["flags"]["DATA_AT_RISK"]:
        return DATA_AT_RISK
    planned = sum(p["rows"] for action, p in summary["plan"].items() if action != "scan")
    todo = planned or summary["flagged"] or summary["unknown_containers"]
    return WORK_TO_DO if todo else CLEAN


def scope(summary: dict[str, Any]) -> str:
    """Say which containers a partial result is about."""
    return (
        f"Only the {summary['containers']:,} of {summary['rows']['containers']:,} containers with "
        f"a replica on {', '.join(summary['changed_nodes'])} were verified; nothing is said of the "
        "others."
    )


def text_report(summary: dict[str, Any]) -> str:
    """Return the run as Ozone's Replication Manager would print it."""
    at = datetime.fromtimestamp(summary["as_of_ms"] / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    title = f"Container Summary Report generated at {at}"
    lines = [title, "=" * len(title)]
    if summary["is_partial"]:
        lines = [f"PARTIAL {title}", "=" * (len(title) + 8), scope(summary)]
    lines += ["", "Container State Summary", "-" * 23]
    lines += [f"{name}: {count}" for name, count in summary["states"].items()]
    lines += ["", "Container Health Summary", "-" * 24]
    lines += [
        f"{name}: {count}" for name, count in summary["health_states"].items() if name != "HEALTHY"
    ]
    lines += [f"(without any flag: {summary['containers'] - summary['flagged']})"]
    if summary["unknown_containers"]:
        lines += [f"(of no container, but with replicas: {summary['unknown_containers']})"]
    for name, ids in summary["samples"]["health_states"].items():
        lines += ["", f"First {SAMPLE_MAX} {name} containers:", ", ".join(map(str, ids))]
    return "\n".join(lines)
