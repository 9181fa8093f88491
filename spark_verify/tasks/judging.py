"""The judge at work: what one task does, wherever it runs.

    possible         rows of some files, each row checked; parted by container (`parted`)
    judge_partition  all rows of some containers ─► health.judge ─► the partition's files

Spark distributes, the judge decides. A slice ends between two containers, so each is judged with
all its rows side by side, whatever else its slice holds. Each task also returns what it counted, so
that no table is read again only to be counted.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from health.batch import Nodes, violations
from health.judge import judge
from health.rules import Rules
from health.segments import Bools, first_of_run
from spark_verify.errors import SnapshotRefused
from spark_verify.file_systems import Place
from spark_verify.input_columns import (
    CONTAINERS,
    PENDING_OPS,
    REPLICAS,
    ROWS_PER_CONTAINER_MAX,
    SAMPLE_MAX,
    TABLES,
    Column,
    schema_of,
)
from spark_verify.result_tables import JUDGED, RESULTS
from spark_verify.runs import run_of, table_of
from spark_verify.snapshot.manifest import Manifest
from spark_verify.snapshot.snapshot_reading import Part, pages_of
from spark_verify.snapshot.violations import EXAMPLES_MAX, examples, wrong_rows
from spark_verify.tasks.further_deletes import further_deletes
from spark_verify.tasks.judge_batches import by_container, coded, cut_of, ids_of, slices_of
from spark_verify.tasks.reconcile_backoff import BEFORE, check_before, with_attempts
from spark_verify.tasks.result_files import ordered, write
from spark_verify.tasks.row_exchange import Layout, joined
from spark_verify.tasks.scan_rows import scan_plan
from spark_verify.tasks.tallies import Tallies
from spark_verify.tasks.verdict_rows import Stamp, judged_tables
from spark_verify.tasks.volume_counts import by_datanode, count_volumes, summed
from spark_verify.tasks.votes import NO_VOTES, VOTES, count_votes

JUDGED_REPLICA_COLUMNS: Final = (
    "container_id",
    "datanode_id",
    "replica_index",
    "state",
    "origin_datanode_id",
    "bcsid",
    "used_bytes",
    "is_empty",
    "tree_algorithm",
    "root",
    "settled_root",
    "tombstones_checksum",
    "volume_id",
    "data_scan_at_ms",
    "finding_count",
    "is_contradictory",
    "load_error",
    "block_count",
    "tombstone_count",
    "is_barred",
    "is_hopeful",
)
"""What of a replica's row is judged or counted; the rest is only looked at where it is read."""


def _kept(columns: Iterable[Column], names: Iterable[str]) -> pa.Schema:
    wanted = {column.name: column for column in columns}
    return schema_of(tuple(wanted[name] for name in names))


PARTS: Final[dict[str, pa.Schema]] = {
    "containers": schema_of(tuple(c for c in CONTAINERS if c.name != "snapshot_id")),
    "replicas": _kept(REPLICAS, JUDGED_REPLICA_COLUMNS),
    "pending_ops": schema_of(tuple(c for c in PENDING_OPS if c.name != "snapshot_id")),
}
"""The tables of a snapshot that a container's rows come from."""

ROWS_HELD: Final = 500_000
"""Rows that are cut apart before they travel: with more of them fewer and larger tables travel, and
a task needs more memory."""

MOVED: Final[dict[str, pa.Schema]] = PARTS | {"before": BEFORE}
"""What is put together by container: those, and what the run before this one found."""


@dataclass(frozen=True, slots=True)
class Case:
    """What the judge is told beside the rows."""

    nodes: Nodes
    rules: Rules
    stamp: Stamp
    manifest: Manifest
    versions: tuple[str, ...] = ()
    """What runs on each of the nodes."""
    sample_max: int = SAMPLE_MAX
    """Container ids that are named of each kind."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What is counted beside the tallies, a row a volume or more."""

    volumes: pa.Table
    """Numbers of each volume (`volumes.count_volumes`)."""
    votes: pa.Table
    """How the replicas of each volume voted (`votes.VOTES`)."""

    @classmethod
    def of(cls, parts: "Iterable[Sums]") -> "Sums":
        """Return the sum of what several tasks counted."""
        found = list(parts)
        return cls(summed([p.volumes for p in found]), summed([p.votes for p in found]))

    def shared(self, count: int) -> "Iterator[tuple[int, Sums]]":
        """Yield these sums in shares: all tasks give what they counted of a datanode the same."""
        volumes, votes = by_datanode(self.volumes, count), by_datanode(self.votes, count)
        for share in range(count):
            yield share, Sums(volumes[share], votes[share])


@dataclass(frozen=True, slots=True)
class Job:
    """What a task is told beside its rows."""

    case: Case
    layout: Layout
    out: str
    """Directory of results, or one laid out like it in which this one grows, as text; all tasks see
    it."""
    attempt: str = ""
    """Ends the names of its files, where an earlier attempt may have left others."""
    changed_nodes: tuple[str, ...] = ()
    """When given, only containers with a replica on one of these nodes are judged."""
    silent: tuple[str, ...] = ()
    """Nodes that cannot be told to scan."""

    def directory(self, table: str) -> Place:
        """Return where the rows of a table go."""
        return table_of(run_of(Place.of(self.out), self.case.stamp.run_id), table)


def possible(
    part: Part, job: Job, tallies: Tallies, own: Callable[[pa.Table], pa.Table] = lambda page: page
) -> Iterator[pa.Table]:
    """Read a part; yield its rows, of each page those that `own` leaves. Rows that cannot be are
    counted and named, and then none of their page is judged: the snapshot is refused."""
    if part.table not in PARTS:
        yield from map(own, _before(part, tallies))
        return
    for page in pages_of(part, schema_of(TABLES[part.table])):
        rows = own(page)
        if _is_possible(part.table, rows, job.case, tallies):
            yield rows.select(MOVED[part.table].names)


def _before(part: Part, tallies: Tallies) -> Iterator[pa.Table]:
    """Read what the run before this one found, as far as that goes; what cannot be read is told,
    and takes nothing from this run."""
    try:
        for page in pages_of(part, BEFORE):
            check_before(page)
            yield page
    except (SnapshotRefused, ValueError) as error:
        tallies.add("unread", (str(error),), (1,))


def parted(part: Part, job: Job, tallies: Tallies) -> Iterator[tuple[int, pa.Table]]:
    """Read a part; yield its rows by partition."""
    found: dict[int, list[pa.Table]] = {}
    held = 0
    for page in possible(part, job, tallies):
        for number, rows in job.layout.parted(page):
            found.setdefault(number, []).append(rows)
        held += page.num_rows
        if held >= ROWS_HELD:
            yield from _taken(found)
            held = 0
    yield from _taken(found)


def _taken(found: dict[int, list[pa.Table]]) -> Iterator[tuple[int, pa.Table]]:
    for number in sorted(found):
        yield number, pa.concat_tables(found.pop(number))


def _is_possible(name: str, table: pa.Table, case: Case, tallies: Tallies) -> bool:
    """Whether all rows of a page can be; what cannot is told."""
    is_wrong = False
    for wrong in wrong_rows(name, table, case.manifest):
        is_wrong = True
        tallies.add("impossible", (name, wrong.what, *wrong.examples), (wrong.count,))
    if name == "pending_ops" and not is_wrong:
        words, codes = coded(table["datanode_id"])
        is_known = pc.is_in(words, value_set=pa.array(case.nodes.names, pa.string()))
        is_strange = ~np.append(is_known.to_numpy(zero_copy_only=False), True)[codes]
        _tell_strange(table, is_strange, "datanode", tallies)
    return not is_wrong


def _tell_strange(ops: pa.Table, is_strange: Bools, what: str, tallies: Tallies) -> None:
    rows = np.flatnonzero(is_strange)
    if len(rows):
        named = examples("pending_ops", ops.take(rows[:EXAMPLES_MAX]))
        tallies.add("strange", (what, *named), (len(rows),))


def judge_partition(
    number: int, tables: dict[str, list[pa.Table]], job: Job, tallies: Tallies
) -> Sums:
    """Judge all rows of a partition and write its file of each table of the result; return what
    was counted beside the tallies. `tables` are rows of `MOVED`, in the order of their parts; they
    are taken out of it, because there may be many."""
    rows = {name: joined(tables.pop(name, []), schema) for name, schema in MOVED.items()}
    if job.changed_nodes:
        rows = _on_nodes(rows, job.changed_nodes)
    before = rows.pop("before")
    found = judge_rows(rows, job.case, tallies)
    votes = summed([NO_VOTES, found.pop(VOTES)])
    found["divergent"] = with_attempts(found["divergent"], before)
    wanted = _wanted(found["divergent"], tallies)
    if not job.changed_nodes:
        scans = scan_plan(rows["replicas"], job.silent, job.case.stamp)
        tallies.add("scans", (), (scans.num_rows,))
        found["plan"] = pa.concat_tables([found["plan"], scans])
    found["plan"] = ordered(found["plan"], "priority", "container_id", "action")
    for name, table in (found | {"reconcile_plan": wanted}).items():
        write(table, job.directory(name), f"{number:05d}{job.attempt}")
    tallies.add("parts", (), (1,))
    return Sums(count_volumes(rows["replicas"], job.case.stamp.as_of_ms), votes)


def _on_nodes(rows: dict[str, pa.Table], nodes: tuple[str, ...]) -> dict[str, pa.Table]:
    """Return the rows of containers that have a replica on one of some nodes."""
    words, codes = coded(rows["replicas"]["datanode_id"])
    is_there = pc.is_in(words, value_set=pa.array(nodes, pa.string()))
    mask = np.append(is_there.to_numpy(zero_copy_only=False), False)[codes]
    ids = pc.unique(rows["replicas"]["container_id"].filter(pa.array(mask)))
    return {
        name: table.filter(pc.is_in(table["container_id"], value_set=ids))
        for name, table in rows.items()
    }


def _wanted(divergent: pa.Table, tallies: Tallies) -> pa.Table:
    """Return what is to be reconciled of what differs, and count it and what is backed off."""
    off = divergent.filter(divergent["is_backed_off"])
    tallies.add("backed_off", (), (off.num_rows,), off["container_id"].to_pylist())
    wanted = divergent.filter(pc.invert(divergent["is_backed_off"]))
    total = pc.sum(wanted["bytes_estimated"]).as_py() or 0
    tallies.add("plan", ("reconcile",), (wanted.num_rows, total))
    return ordered(
        wanted.select(RESULTS["reconcile_plan"].schema.names), "priority", "container_id"
    )


def judge_rows(rows: dict[str, pa.Table], case: Case, tallies: Tallies) -> dict[str, pa.Table]:
    """Judge rows of `PARTS`, all of their containers, which are put in the order of these; return
    those of each table of `rows.JUDGED`, and the votes."""
    found = {name: [schema.empty_table()] for name, schema in JUDGED.items()} | {VOTES: [NO_VOTES]}
    for name in PARTS:
        rows[name] = by_container(rows[name])
    for piece in slices_of({name: rows[name] for name in PARTS}):
        if any(table.num_rows for table in piece.values()):
            for name, table in _judged(piece, case, tallies).items():
                found[name].append(table)
    tables = {name: pa.concat_tables(pieces) for name, pieces in found.items()}
    further = further_deletes(rows, tables["plan"], case.nodes, case.rules, case.stamp)
    total = pc.sum(further["bytes_estimated"]).as_py() or 0
    tallies.add("plan", ("delete",), (further.num_rows, total))
    tables["plan"] = pa.concat_tables([tables["plan"], further])
    return tables


def _judged(rows: dict[str, pa.Table], case: Case, tallies: Tallies) -> dict[str, pa.Table]:
    tallies.count_rows(
        containers=rows["containers"].num_rows,
        replicas=rows["replicas"].num_rows,
        ops=rows["pending_ops"].num_rows,
    )
    tallies.twice(rows["containers"]["container_id"].to_numpy())
    if _are_crowded(rows, tallies):
        return {}  # the snapshot is refused: what cannot be is not judged
    cut = cut_of(rows["containers"], rows["replicas"], rows["pending_ops"], case.nodes)
    if contradictions := violations(
        cut.batch, lambda row: cut.rows([row], "datanode_id")["datanode_id"][0].as_py()
    ):
        tallies.violations(contradictions)
        return {}
    containers = cut.batch.containers
    is_nowhere = ~containers.is_known
    is_nowhere[cut.batch.replicas.container] = False
    if is_nowhere.any():  # only an op names it
        ids = containers.container_id[is_nowhere]
        table = rows["pending_ops"]
        _tell_strange(table, np.isin(table["container_id"].to_numpy(), ids), "container", tallies)
    judgement = judge(cut.batch, case.rules)
    tallies.count(judgement)
    tallies.compare(judgement, rows["containers"])
    tables = judged_tables(judgement, cut, case.stamp)
    return tables | {VOTES: count_votes(judgement, cut, case.versions)}


def _are_crowded(rows: dict[str, pa.Table], tallies: Tallies) -> bool:
    """Whether a container has more rows in a table than can be; it is counted and named."""
    is_any = False
    for name in ("replicas", "pending_ops"):
        if rows[name].num_rows <= ROWS_PER_CONTAINER_MAX:
            continue
        ids = ids_of(rows[name])
        firsts = np.flatnonzero(first_of_run(ids))
        sizes = np.diff(np.append(firsts, len(ids)))
        for i in np.flatnonzero(sizes > ROWS_PER_CONTAINER_MAX)[:EXAMPLES_MAX].tolist():
            is_any = True
            tallies.add("crowd", (name, f"(container_id {ids[firsts[i]]}: {sizes[i]} rows)"), (1,))
    return is_any
