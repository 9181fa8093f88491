"""Combines the rows of each container into one row of numbers, and finds obviously healthy
containers.

    containers ─┐
    replicas   ─┼─► union ─► groupBy(container_id) ─► facts ─┬─► well: their row of health/
    pending ops ┘                                            └─► all others: classified by health/

All columns of the combined row are numbers, so that Spark can aggregate before it shuffles. A
container is obviously healthy if each number has the value of a container without any problem.
Nearly all containers of a healthy cluster are obviously healthy, and their rows never
reach Python. The functions in `health/` classify the other containers. A test checks that these
functions give the same result for obviously healthy containers as this module.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyspark.sql.functions as f
from pyspark.sql import DataFrame, SparkSession

from health import words
from health.rules import Rules
from spark_verify.input_columns import schema_of
from spark_verify.snapshot.checks import first_fault
from spark_verify.snapshot.manifest import SnapshotManifest
from spark_verify.snapshot.tables import Snapshot
from spark_verify.sql_text import local_rows, texts

BITS: Final = 63
"""Number of bits in a set of racks or datanodes, which is a long."""

MASKS: Final = tuple(
    f"bit_or(shiftleft(1L, CAST(node_place * {spread}L % 1000003 % {BITS} AS INT)))"
    for spread in (1, 40_503, 2_654_435_761)
)
"""SQL for three sets of hashes of datanodes. It is rare that two datanodes of a container have
equal hashes in all sets."""

ALIKE: Final = ("root", "maker", "settled_root", "tombstones_checksum")
"""Columns that must be equal in all replicas of an obviously healthy container. Nulls are
ignored."""

HEALTH_NAMES: Final = tuple(state.name for state in words.HealthState)

VOTERS_MIN: Final = 3
"""Minimum number of replicas with which the majority can show that any single replica is wrong."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The validated input of a run: the tables of the snapshot, its manifest, and the health
    rules."""

    snapshot: Snapshot
    manifest: SnapshotManifest
    nodes: Sequence[dict[str, Any]]
    """All rows of the table `nodes/`, sorted by datanode id."""
    rules: Rules
    changed_nodes: tuple[str, ...] = ()
    """If this is not empty, only containers with a replica on one of these datanodes are
    verified."""

    @property
    def silent(self) -> list[str]:
        """Ids of the datanodes that cannot be reached, and therefore cannot receive commands to
        scan."""
        return [n["datanode_id"] for n in self.nodes if n["health"] not in words.REACHABLE_HEALTHS]


def node_facts(spark: SparkSession, inputs: Inputs) -> DataFrame:
    """Return one row for each datanode: its index, and the facts that the health rules need."""
    racks = {rack: i for i, rack in enumerate(sorted({n["rack"] for n in inputs.nodes}))}
    versions = {word: i for i, word in enumerate(sorted({n["version"] for n in inputs.nodes}))}
    rows = [
        (
            node["datanode_id"],
            place,
            node["health"] in words.REACHABLE_HEALTHS
            and node["op_state"] == "IN_SERVICE"
            and bool(node["has_reported"]),
            versions[node["version"]],
            1 << racks[node["rack"]] % BITS,
            node["datanode_id"] in inputs.changed_nodes,
        )
        for place, node in enumerate(inputs.nodes)
    ]
    columns = schema_of(
        "datanode_id string, node_place long, is_plain boolean, version int, rack_bit long, "
        "is_changed boolean"
    )
    return local_rows(spark, columns, rows)


def ops_on_nodes(inputs: Inputs, nodes: DataFrame) -> DataFrame:
    """Return the pending operations, each with the index of its datanode in `nodes`.

    The index is null if the datanode is unknown.
    """
    known = f.broadcast(nodes.select("datanode_id", "node_place"))
    return inputs.snapshot["pending_ops"].join(known, "datanode_id", "left")


def container_facts(inputs: Inputs, nodes: DataFrame) -> DataFrame:
    """Return one row of numbers for each container that occurs in any of the input tables."""
    manifest, snapshot = inputs.manifest, inputs.snapshot
    containers = snapshot["containers"].selectExpr(
        "container_id",
        "1 AS containers",
        f"{_code('replication_type', words.REPLICATION_TYPES)} AS kind",
        f"{_code('state', words.CONTAINER_STATES)} AS state",
        "replication_factor AS factor",
        "coalesce(ec_data, 0) AS data",
        "coalesce(ec_parity, 0) AS parity",
        "CAST(pipeline_alive AS INT) AS has_pipeline",
        "CAST(suppressed AS INT) AS suppressed",
        f"{_code('health_state', HEALTH_NAMES)} AS told_state",
        f"{first_fault('containers', manifest)} AS fault",
    )
    is_quiet = (
        "is_plain AND load_error IS NULL AND finding_count = 0 AND NOT is_contradictory "
        "AND NOT is_barred AND NOT is_hopeful"
    )
    # If the snapshot does not list a datanode, the facts about it are null.
    on_nodes = snapshot["replicas"].join(f.broadcast(nodes), "datanode_id", "left")
    replicas = on_nodes.selectExpr(
        "container_id",
        "1 AS replicas",
        f"CAST({is_quiet} AND state = 'CLOSED' AND NOT is_empty AS INT) AS closed",
        f"CAST({is_quiet} AND state = 'OPEN' AS INT) AS open",
        "CASE WHEN tree_algorithm IS NOT NULL THEN root END AS root",
        "xxhash64(tree_algorithm, version) AS maker",
        "settled_root",
        "tombstones_checksum",
        "shiftleft(1L, replica_index) AS index_bit",
        "rack_bit",
        "node_place",
        "CAST(is_changed AS INT) AS is_changed",
        f"{first_fault('replicas', manifest)} AS fault",
    )
    pending = ops_on_nodes(inputs, nodes).selectExpr(
        "container_id", "1 AS pending_ops", f"{first_fault('pending_ops', manifest)} AS fault"
    )
    rows = containers.unionByName(replicas, allowMissingColumns=True)
    rows = rows.unionByName(pending, allowMissingColumns=True)
    sums = ("containers", "replicas", "pending_ops", "closed", "open")
    sizes = ("factor", "data", "parity")
    single = ("kind", "state", *sizes, "has_pipeline", "suppressed", "told_state")
    columns = [
        *(f"coalesce(sum({name}), 0L) AS {name}" for name in sums),
        *(f"max({name}) AS {name}" for name in (*single, "is_changed")),
        *(f"{end}({name}) AS {name}_{end}" for name in ALIKE for end in ("min", "max")),
        *(f"bit_or({name}) AS {name}" for name in ("index_bit", "rack_bit")),
        *(f"{mask} AS mask_{i}" for i, mask in enumerate(MASKS)),
        "count(root) AS roots",
        "min(fault) AS fault",
    ]
    kept = ("container_id", *sums[:3], "kind", "state", "parity", "told_state", "is_changed")
    return rows.sparkSession.sql(
        f"""
        SELECT {", ".join(kept)}, fault, {is_plainly_well(inputs.rules)} AS is_well
        FROM (SELECT container_id, {", ".join(columns)} FROM {{rows}} GROUP BY container_id)
        """,  # noqa: S608 -- texts of others are quoted
        rows=rows,
    )


def is_plainly_well(rules: Rules) -> str:
    """Return the SQL condition for obviously healthy containers.

    The functions in `health/` would find no problem in these containers.
    """
    is_single = "containers = 1 AND pending_ops = 0 AND fault IS NULL AND suppressed = 0"
    is_apart = " OR ".join(
        f"bit_count({name}) = replicas"
        for name in ("rack_bit", *(f"mask_{i}" for i in range(len(MASKS))))
    )
    closed = f"state = {int(words.SharedState.CLOSED)} AND closed = replicas"
    opened = f"state = {int(words.SharedState.OPEN)} AND open = replicas AND has_pipeline = 1"
    # Exactly the bits 1 to data + parity are set. There are as many replicas, so each index occurs
    # once.
    is_whole = "replicas = data + parity AND index_bit = shiftleft(2L, data + parity) - 2"
    is_full = "replicas = factor AND index_bit = 1"
    agree = " AND ".join(f"{name}_min <=> {name}_max" for name in ALIKE)
    copies_spread = "true" if rules.rack_count <= 1 else "bit_count(rack_bit) >= 2"
    shards_spread = "true" if rules.rack_count <= 1 else "bit_count(rack_bit) = replicas"
    is_ratis, is_ec = (
        f"kind = {int(kind)}" for kind in (words.ReplicationType.RATIS, words.ReplicationType.EC)
    )
    kinds = (
        f"{is_ratis} AND {closed} AND {is_full} AND {agree} AND roots = replicas "
        f"AND replicas >= {VOTERS_MIN} AND {copies_spread}",
        f"{is_ec} AND {closed} AND {is_whole} AND {shards_spread}",
        f"{is_ratis} AND {opened} AND {is_full}",
        f"{is_ec} AND {opened} AND {is_whole}",
    )
    is_any = " OR ".join(f"({one})" for one in kinds)
    return f"coalesce({is_single} AND ({is_apart}) AND ({is_any}), false)"


def well_health(facts: DataFrame) -> DataFrame:
    """Return the rows of the table `health/` for the obviously healthy containers in `facts`."""
    is_open, is_ratis = (
        f"state = {int(words.SharedState.OPEN)}",
        f"kind = {int(words.ReplicationType.RATIS)}",
    )
    why_not = f"CASE WHEN {is_open} THEN 'NOT_CLOSED' WHEN NOT {is_ratis} THEN 'SHARDS_ALONE' END"
    eligibility = (
        f"CASE WHEN {is_open} THEN 'INELIGIBLE_CONTAINER_STATE' "
        f"WHEN NOT {is_ratis} THEN 'INELIGIBLE_REPLICATION_TYPE' ELSE 'OK' END"
    )
    redundancy = f"CAST(if({is_ratis}, replicas - 1, parity) AS INT)"
    columns = {
        "state": _word("state", words.CONTAINER_STATES),
        "replication_type": _word("kind", words.REPLICATION_TYPES),
        "health_state": f"{int(words.HealthState.HEALTHY)}",
        "flags": "0L",
        "queue": "'-'",
        "is_qc_stuck": "false",
        "checksum_class": f"if({is_ratis} AND NOT {is_open}, 'MATCH', 'NOT_COMPARABLE')",
        "why_not_compared": why_not,
        "eligibility": eligibility,
        "remaining_redundancy": f"CASE WHEN NOT {is_open} THEN {redundancy} END",
        "replica_count": "CAST(replicas AS INT)",
        "is_known": "true",
        "scm_health_state": _word("told_state", HEALTH_NAMES),
    }
    lines = [f"{sql} AS {name}" for name, sql in columns.items()]
    return facts.filter("is_well").selectExpr("container_id", *lines)


def _code(name: str, known: Sequence[str]) -> str:
    """Return SQL for the index in `known` of the word in column `name`. The index of null is
    null."""
    return f"CAST(array_position(array({texts(known)}), {name}) - 1 AS INT)"


def _word(name: str, known: Sequence[str]) -> str:
    """Return SQL for the word in `known` at the index in column `name`. The word at index null is
    null."""
    # Spark 4.3's generated code returns the last word for null.
    return f"if({name} IS NULL, NULL, element_at(array({texts(known)}), {name} + 1))"
