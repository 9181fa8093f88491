"""Where the tasks of a run are done: in this process, or by Spark's workers.

    here    parts ─► read ─► judged one after the other
    Spark   ranges of containers ─► tasks that read and judge ─► what they counted
            or parts ─► tasks that read ─► exchange of blobs ─► tasks that judge ─► the same
            then, where there are many, tasks that add up what was counted of some datanodes

The tasks are the same functions (`judging`), and so are the files they write. Spark sees whole
Arrow tables as blobs: its rows are few, and its JVM does nothing by the row.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_verify.snapshot.ranges import ID_MAX, ID_MIN, Range, ranges_of
from spark_verify.snapshot.snapshot_reading import Part
from spark_verify.tasks.judging import Job, Sums, judge_partition, parted, possible
from spark_verify.tasks.row_exchange import packed, unpacked
from spark_verify.tasks.tallies import Tallies, collected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TALLIES: Final = "tallies"
"""Name of the blob that says what was counted while rows were read."""

BLOBS_PER_BATCH: Final = 16
"""Blobs that Spark hands to Python at once: each may have megabytes."""

SUMMED_HERE: Final = 16
"""Partitions whose counts this process adds up itself. Each has a row for nearly every volume of
the cluster, 200 bytes, of which a hundred partitions would be a gigabyte where there are fifty
thousand volumes: more than Spark lets a driver collect."""

READ: Final = "partition int, number int, blob binary"
JUDGED: Final = "share int, tallies string, volumes binary, votes binary"
"""`share`: which task adds it up."""

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Counted:
    """What the tasks of a run counted."""

    tallies: Tallies
    sums: Sums


def is_submitted() -> bool:
    """Whether spark-submit started this process, or a Spark Connect server is named."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ


def has_session() -> bool:
    """Whether this process was given a session of Spark, or has one."""
    if is_submitted():
        return True
    if "pyspark" not in sys.modules:
        return False
    from pyspark.sql import SparkSession  # only where it is there already: it takes a second

    return SparkSession.getActiveSession() is not None


def run_here(parts: Sequence[Part], job: Job) -> Counted:
    """Do all tasks in this process; the layout has one partition."""
    return judge_range(0, Range(ID_MIN, ID_MAX, tuple(parts)), job)


def judge_range(number: int, own: Range, job: Job) -> Counted:
    """Read and judge the containers of a range."""
    tallies = Tallies(job.case.sample_max)
    tables: dict[str, list[pa.Table]] = {}
    for part in own.parts:
        tables.setdefault(part.table, []).extend(possible(part, job, tallies, own.own))
    return Counted(tallies, judge_partition(number, tables, job, tallies))


def run_on_spark(spark: "SparkSession", parts: Sequence[Part], job: Job) -> Counted:
    """Do all tasks as tasks of Spark: by ranges of containers where the snapshot has them, else
    with one exchange between reading and judging."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BLOBS_PER_BATCH))
    ranges = ranges_of(parts, partitions=job.layout.partitions)
    count = len(ranges) or len(parts)
    shares = -(-(len(ranges) or job.layout.partitions) // SUMMED_HERE)
    numbers = spark.range(0, count, 1, max(count, 1))
    if ranges:
        judged = numbers.mapInArrow(_judging_ranges(ranges, job, shares), JUDGED)
    else:
        judged = (
            _exchanged(
                numbers.mapInArrow(_reading(parts, job), READ), job.layout.partitions, "partition"
            )
            .sortWithinPartitions("partition", "number")
            .mapInArrow(_judging(job, shares), JUDGED)
        )
    if shares > 1:
        judged = _exchanged(judged, shares, "share").mapInArrow(_adding_up(job), JUDGED)
    return added_up([counted for _, counted in _told(judged.toArrow(), job)], job)


def _exchanged(blobs: "DataFrame", partitions: int, by: str) -> "DataFrame":
    """Bring the blobs of each partition together, one partition a task."""
    if hasattr(blobs, "repartitionById"):
        return blobs.repartitionById(partitions, by)
    # Spark 4.0: by a hash of the number, which gives some tasks several and others none.
    return blobs.repartition(partitions, by)


def _reading(parts: Sequence[Part], job: Job) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        for number in _numbers(batches):
            for partition, blob in read_blobs(parts[number], job):
                yield _row(READ, partition, number, blob)

    return run


def read_blobs(part: Part, job: Job) -> Iterator[tuple[int, bytes]]:
    """Read a part; yield its rows in blobs, each with the partition it is for, and at last what was
    counted, if anything."""
    tallies = Tallies(job.case.sample_max)
    for partition, table in parted(part, job, tallies):
        yield partition, packed(part.table, table)
    if not tallies.is_empty:
        yield 0, packed(TALLIES, pa.table({"text": [tallies.text()]}))


def _judging(job: Job, shares: int) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        for number, blobs in groupby(_blobs(batches), key=lambda row: row[0]):
            counted = judge_blobs(number, (blob for _, blob in blobs), job)
            yield from _counted_rows(number, counted, job, shares)

    return run


def _judging_ranges(ranges: Sequence[Range], job: Job, shares: int) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        for number in _numbers(batches):
            counted = judge_range(number, ranges[number], job)
            yield from _counted_rows(number, counted, job, shares)

    return run


def _numbers(batches: Batches) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _counted_rows(number: int, counted: Counted, job: Job, shares: int) -> Batches:
    """Yield what one task counted, for each of those who add up."""
    for share, part in counted.sums.shared(shares):
        is_told = share == number % shares
        told = counted.tallies if is_told else Tallies(job.case.sample_max)
        yield _counted_row(share, Counted(told, part))


def judge_blobs(number: int, blobs: Iterable[bytes], job: Job) -> Counted:
    """Judge a partition of which these are all blobs, in the order of their parts."""
    tables: dict[str, list[pa.Table]] = {}
    for blob in blobs:
        name, table = unpacked(blob)
        tables.setdefault(name, []).append(table)
    texts = [table["text"][0].as_py() for table in tables.pop(TALLIES, [])]
    tallies = collected(texts, job.case.sample_max)
    return Counted(tallies, judge_partition(number, tables, job, tallies))


def _adding_up(job: Job) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        sums: dict[int, Counted] = {}
        for batch in batches:
            for share, counted in _told(batch, job):
                known = [sums[share]] if share in sums else []
                sums[share] = added_up([*known, counted], job)
        for share, counted in sums.items():
            yield _counted_row(share, counted)

    return run


def added_up(counted: Sequence[Counted], job: Job) -> Counted:
    """Return the sum of what several tasks counted."""
    texts = [one.tallies.text() for one in counted]
    return Counted(collected(texts, job.case.sample_max), Sums.of(one.sums for one in counted))


def _told(rows: pa.Table | pa.RecordBatch, job: Job) -> Iterator[tuple[int, Counted]]:
    for row in rows.to_pylist():
        tallies = collected([row["tallies"]], job.case.sample_max)
        sums = Sums(unpacked(row["volumes"])[1], unpacked(row["votes"])[1])
        yield row["share"], Counted(tallies, sums)


def _counted_row(share: int, counted: Counted) -> pa.RecordBatch:
    sums = counted.sums
    blobs = packed("volumes", sums.volumes), packed("votes", sums.votes)
    return _row(JUDGED, share, counted.tallies.text(), *blobs)


def _blobs(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    for batch in batches:
        for row in range(batch.num_rows):
            yield batch.column(0)[row].as_py(), batch.column(2)[row].as_py()


def _row(schema: str, *values: Any) -> pa.RecordBatch:
    kinds = {"int": pa.int32(), "string": pa.string(), "binary": pa.binary()}
    columns = [field.split() for field in schema.split(", ")]
    return pa.RecordBatch.from_pydict(
        {
            name: pa.array([value], kinds[kind])
            for (name, kind), value in zip(columns, values, strict=True)
        }
    )
