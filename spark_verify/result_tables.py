"""The tables that the job writes: their columns, types and meanings.

    out/<table>/run_id=<id>/attempt=<id>/part-….parquet     rows of a run
    out/runs/run_id=<id>/part-….parquet                     the run's row, written last

SQL engines read the names of the directories as columns. A run is complete if the table `runs` has
its row. This row names the attempt whose rows are valid.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pyarrow as pa

from spark_verify.input_columns import KINDS, TABLES, schema_of

RUNS: Final = "runs"


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table of the result: its meaning, its columns, and their meanings."""

    meaning: str
    schema: pa.Schema
    meanings: tuple[str, ...]


def _table(meaning: str, text: str, **structs: pa.Schema) -> ResultTable:
    """Return a table that is declared by lines of the form `name type meaning`.

    A `*` after the type marks a list. `structs` has additional types by name.
    """
    kinds = KINDS | {name: pa.struct(list(own)) for name, own in structs.items()}
    fields, meanings = [], []
    for line in filter(str.strip, text.splitlines()):
        name, kind, words = line.split(maxsplit=2)
        base = kinds[kind.rstrip("*")]
        fields.append(pa.field(name, pa.list_(base) if kind.endswith("*") else base))
        meanings.append(words)
    return ResultTable(meaning, pa.schema(fields), tuple(meanings))


PLAN_REPLICA: Final = schema_of(
    "datanode_id string, state string, root long, tree_algorithm string"
)
NOT_COMPARED: Final = (
    *("snapshot_id", "container_id", "datanode_id", "origin_datanode_id", "tree_generation"),
    *("settled_root", "is_barred", "is_hopeful", "data_scan_at_ms", "reported_at_ms"),
)
COMPARED: Final = pa.schema([c for c in TABLES["replicas"] if c.name not in NOT_COMPARED])
"""Columns of a replica that are compared between its report and its record in the SCM."""


AGE_DAYS: Final = (1, 2, 4, 7, 14, 30)
"""Upper limits, in days, of the classes by which the ages of full scans are counted.

The classes "earlier" and "never" follow.
"""

_AGES: Final = "\n".join(
    f"verified_{high}d long replicas whose last full scan is {low} to {high} days old"
    for low, high in pairwise((0, *AGE_DAYS))
)

_STAMP: Final = """snapshot_id string the snapshot that was verified
    as_of_ms long the instant of the snapshot, in ms since 1970
    expires_at_ms long after it the control plane does not act on the row, in ms since 1970
    """

_RECONCILE: Final = f"""
    container_id long the container
    action string reconcile
    priority int how urgent it is: the lower, the sooner; null if its redundancy is unknown
    reason string why
    checksum_class string how the roots of its replicas relate
    replicas replica* its replicas as they were seen
    bytes_estimated long what a repair may have to move
    {_STAMP}
    """

RESULTS: Final = {
    "health": _table(
        "one row a container",
        """
    container_id long the container
    state string its own state: OPEN, CLOSED and others; null if nobody knows it
    replication_type string RATIS, EC or STAND_ALONE; null if the control plane does not know it
    health_state int the number of Ozone's health state: 0 is HEALTHY
    flags long what is the matter, a bit each: see FLAGS in health/words.py, from bit 0
    queue string where Ozone would put it: U under-replicated, O over-replicated, - nowhere
    is_qc_stuck boolean whether it is quasi-closed and cannot be closed
    checksum_class string how the roots of its replicas relate: MATCH, MISMATCH_MINORITY and others
    why_not_compared string why its roots cannot be compared: NOT_CLOSED and others; else null
    eligibility string whether it may be reconciled: OK, or why not
    remaining_redundancy int how many replicas or shards may be lost before data is; null if unknown
    replica_count int replicas that were reported
    is_known boolean whether the control plane knows it; if not, only replicas name it
    scm_health_state string the health state that the control plane gave it; null if it gave none
    snapshot_id string the snapshot that was verified
        """,
    ),
    "replica_class": _table(
        "one row a replica of every container with which anything is the matter",
        """
    container_id long the container
    datanode_id string the datanode that holds it
    replica_index int the shard of an EC container, from 1; 0 for a whole replica
    volume_id string the volume of that datanode
    state string the replica's own state: CLOSED, UNHEALTHY and others
    root long the root of its tree, 64 bits read with a sign; null if not known
    tree_algorithm string what made the tree: roots of two algorithms are not compared
    finding_count int what its last scan found
    is_reachable boolean whether its datanode answers
    role string what it is to its container: VULNERABLE, UNHEALTHY, STALE, MATCHING or MISMATCHED
    is_minority boolean whether it lost the vote about the root
    checksum_class string that of the container
    snapshot_id string the snapshot that was verified
        """,
    ),
    "divergent": _table(
        "one row a container whose replicas differ, also where no repair moved them",
        f"""{_RECONCILE}
    attempts int runs in a row before this one that found the same roots
    is_backed_off boolean whether it is left out of reconcile_plan this time
        """,
        replica=PLAN_REPLICA,
    ),
    # The control plane reads this table and checks each row again against its current state.
    "reconcile_plan": _table(
        "containers to reconcile, the most urgent first", _RECONCILE, replica=PLAN_REPLICA
    ),
    "plan": _table(
        "what to do beside reconciling: replicate, reconstruct, delete, close and scan",
        f"""
    container_id long the container
    action string replicate, reconstruct, delete, close or scan
    priority int how urgent it is: the lower, the sooner
    reason string why
    sources string* datanodes to copy from
    doubts string* what speaks against sources that nothing better could be found for
    targets string* datanodes told to act on their own replica
    indexes int* shards of an EC container that it is about
    copies int how many new replicas are needed
    is_forced boolean whether a replica goes that holds data
    bytes_estimated long what it may have to move
    {_STAMP}
        """,
    ),
    "volumes": _table(
        "one row a volume of a datanode that holds a replica",
        f"""
    datanode_id string the datanode
    volume_id string the volume of that datanode
    replicas long replicas on it
    in_tree long replicas in a state in which they have a tree
    scans long replicas without a root that could have one
    scan_bytes long bytes of these replicas
    {_AGES}
    verified_earlier long replicas whose last full scan is older
    never_verified long replicas that have a tree and no full scan
    agreeing long replicas that have the root of all others of a container that is obviously healthy
        """,
    ),
    "votes": _table(
        "how the replicas of a volume voted about roots that could be compared",
        """
    datanode_id string the datanode
    volume_id string the volume of that datanode
    against string the version of all others, where it is another than the replica's; else empty
    exposed long votes that could have been lost
    lost long votes that were lost
        """,
    ),
    "disagreement": _table(
        "one row per replica for which the control plane's record differs from its datanode's "
        "report",
        """
    container_id long the container
    datanode_id string the datanode
    kind string missing: not reported; stray: reported only; other_root; stale: otherwise different
    differs string* which columns differ; none if one of the two is null
    recorded replica the control plane's record; null if it knows no such replica
    reported replica the datanode's report; null if it has no such replica
    recorded_at_ms long when the control plane last recorded a report of it, in ms since 1970
    reported_at_ms long when the datanode wrote its report, in ms since 1970
    is_later boolean whether it changed after the report or the snapshot: time may explain the row
    snapshot_id string the snapshot that was verified
        """,
        replica=COMPARED,
    ),
    RUNS: _table(
        "one row a run whose tables are whole: rows of other runs are none",
        """
    snapshot_id string the snapshot that was verified
    cluster_id string the cluster that it is of
    as_of_ms long the instant of the snapshot, in ms since 1970
    term long the control plane's term
    is_partial boolean whether only containers on some datanodes were verified
    changed_nodes string* those datanodes
    exit_code int 0 clean, 2 work to do, 4 data at risk (3 in runs from before it was 4)
    containers long containers that were verified
    replicas long replicas of the snapshot
    flagged long containers with any flag
    unknown_containers long containers that only replicas name
    result_version int the version of these tables
    code string checksum of the code that judged
    attempt string the attempt whose rows are those of the run
        """,
    ),
}
"""All result tables in the order in which they are published.

`runs` is last; its row confirms that the rows of the other tables are complete.
"""

PLAN_LIFE_MS: Final = 30 * 60 * 1000
"""Lifetime of a plan in milliseconds. The SCM does not execute an older plan."""

STAMP: Final = ("snapshot_id", "as_of_ms", "expires_at_ms")
"""Columns that have the same value in all rows of a run."""

JUDGED: Final = {
    name: pa.schema([field for field in RESULTS[name].schema if field.name not in STAMP])
    for name in ("health", "replica_class", "divergent", "plan")
}
"""Schemas of the tables whose rows `health/` computes, without the columns of STAMP."""
