"""Clusters verified by what their datanodes report, without a control plane or beside one."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from health.tables.report_columns import file_name
from health.words import flag_names
from spark_verify.errors import SnapshotRefused
from spark_verify.pipeline import VerifyRequest, VerifyResult, verify
from suture.runtime.exit_codes import ExitCode
from tests.spark.test_sql import QUERIES, answers
from tests.support.verification.reports import (
    HEARD_BEFORE_MS,
    START_ID,
    Held,
    copies,
    write_report,
    write_reports,
    write_snapshot,
)
from tests.support.verification.snapshots import ContainerRow

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("spark")]

HOUR_MS = 3_600_000
ODD = 3
SHORT = 4
OVER = 5
CODED = 6
DAMAGED = 8

CLUSTER = [
    *copies(1, "abc"),
    *copies(2, "bcd"),
    *copies(ODD, "ab"),
    Held(ODD, "dn-c", root=7),
    *copies(SHORT, "ab"),
    *copies(OVER, "abcd"),
    *(Held(CODED, f"dn-{name}", replica_index=i) for i, name in enumerate("abcde", 1)),
    *copies(7, "abc", state="OPEN"),
    *copies(DAMAGED, "cd"),
    Held(DAMAGED, "dn-e", state="UNHEALTHY", finding_count=2),
]
"""What the datanodes hold."""

FLAGS = {
    1: set(),
    2: set(),
    ODD: {"ROOTS_DIFFER"},
    SHORT: {"UNDER_REPLICATED"},
    OVER: {"OVER_REPLICATED"},
    CODED: set(),
    7: set(),
    DAMAGED: {"UNDER_REPLICATED", "UNHEALTHY_REPLICA", "SCAN_FINDINGS"},
}
"""What is wrong with the containers."""


PLANTED = {
    (1, "dn-a", "missing", False): set(),
    (2, "dn-d", "stray", False): set(),
    (ODD, "dn-c", "other_root", False): {"root"},
    (OVER, "dn-b", "stale", False): {"state", "bcsid"},
    (OVER, "dn-c", "stale", True): {"finding_count"},
}
"""Wrong records of the control plane; the last may be explained by time."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def flags_of(result: VerifyResult) -> dict[int, set[str]]:
    """Return the flags of all containers."""
    rows = pq.read_table(result.table("health")).to_pylist()
    return {row["container_id"]: set(flag_names(row["flags"])) for row in rows}


def actions_of(result: VerifyResult) -> set[str]:
    """Return what the plan has of container OVER and SHORT."""
    rows = pq.read_table(result.table("plan")).to_pylist()
    return {row["action"] for row in rows if row["container_id"] in (OVER, SHORT)}


def test_reports_alone_show_what_is_wrong_with_which_container(tmp_path: Path) -> None:
    """
    Only the newest report of a datanode counts. One that reports no more counts as dead: what it
    had is missing. What no report says is assumed, and told.
    """
    at_ms, reports = now_ms(), tmp_path / "reports"
    write_reports(reports, copies(99, "a"), at_ms - 30_000)
    write_reports(reports, CLUSTER, at_ms)
    write_report(reports, "dn-gone", copies(SHORT, "gone"), at_ms - HOUR_MS)
    write_report(reports, "dn-empty", [], at_ms - 1)

    result = verify(VerifyRequest("", tmp_path / "out", reports=str(reports)))

    assert FLAGS == flags_of(result)
    summary = result.summary
    assert result.run_id.startswith(f"reports-{at_ms}-")
    assert (ExitCode.TO_DO, 8, len(CLUSTER), 7) == (
        summary["exit_code"],
        summary["rows"]["containers"],
        summary["rows"]["replicas"],
        summary["rows"]["nodes"],
    )
    told = summary["reports"]
    gone = f"dn-gone/{file_name(at_ms - HOUR_MS, START_ID)}"
    assert [gone] == told["silent"]
    assert 6 == told["datanodes"]
    assert {"replication_factor": 3, "ec_data": 3, "ec_parity": 2} == told["assumed"]
    assert told == json.loads((result.directory / "manifest.json").read_text())["reports"]
    assert gone in summary["text_report"]
    assert "replication_factor 3" in summary["text_report"]
    assert gone in (result.directory / "report.html").read_text()
    rows = pq.read_table(result.table("replica_class")).to_pylist()
    assert {"replicate", "delete"} == actions_of(result)
    assert {(ODD, "dn-c")} == {
        (row["container_id"], row["datanode_id"]) for row in rows if row["is_minority"]
    }
    assert 0 == pq.read_table(result.table("disagreement")).num_rows
    again = verify(VerifyRequest("", tmp_path / "out", reports=str(reports)))
    assert result.attempt == again.attempt


def test_reports_reveal_wrong_records(
    tmp_path: Path,
) -> None:
    """
    The rows are those that were planted, and no others. Containers, replication and datanodes are
    the snapshot's, replicas those of the reports.
    """
    at_ms = now_ms()
    as_of_ms = at_ms + 2 * HEARD_BEFORE_MS
    reported = [one for one in CLUSTER if (one.container_id, one.datanode_id) != (1, "dn-a")]
    recorded = {(one.container_id, one.datanode_id): one for one in CLUSTER}
    del recorded[2, "dn-d"]
    for key, more in {
        (ODD, "dn-c"): {"root": 1},
        (OVER, "dn-b"): {"state": "QUASI_CLOSED", "bcsid": 9},
        (7, "dn-a"): {"used_bytes": 5, "bcsid": 1},
        (OVER, "dn-c"): {"finding_count": 3, "reported_at_ms": as_of_ms},
        (1, "dn-b"): {"data_scan_at_ms": 1},
    }.items():
        recorded[key] = replace(recorded[key], more={"reported_at_ms": at_ms - 1} | more)
    for key, one in recorded.items():
        is_barred = one.container_id == OVER
        more = {"reported_at_ms": at_ms - 1, "is_barred": is_barred}
        recorded[key] = replace(one, more=more | one.more)
    silent = Held(1, "dn-silent", more={"reported_at_ms": at_ms - 1})
    containers = [
        ContainerRow(number, health_state="MISSING") for number in (1, 2, ODD, SHORT, OVER)
    ]
    containers += [
        ContainerRow(CODED, "EC", 5, 3, 2),
        ContainerRow(7, state="OPEN"),
        ContainerRow(DAMAGED),
    ]
    reports = tmp_path / "reports"
    write_reports(reports, reported, at_ms)
    snapshot = write_snapshot(tmp_path / "s", containers, [*recorded.values(), silent], as_of_ms)

    result = verify(VerifyRequest(str(snapshot), tmp_path / "out", reports=str(reports)))

    rows = pq.read_table(result.table("disagreement")).to_pylist()
    columns = ("container_id", "datanode_id", "kind", "is_later")
    assert PLANTED == {tuple(row[c] for c in columns): set(row["differs"]) for row in rows}
    assert len(PLANTED) == len(rows)
    missing, stray, other, stale, _ = rows
    assert (None, "CLOSED", at_ms - 1, at_ms) == (
        missing["reported"],
        missing["recorded"]["state"],
        missing["recorded_at_ms"],
        missing["reported_at_ms"],
    )
    assert (None, None) == (stray["recorded"], stray["recorded_at_ms"])
    assert 1 == stray["reported"]["root"]
    assert (1, 7) == (other["recorded"]["root"], other["reported"]["root"])
    assert ("QUASI_CLOSED", "CLOSED") == (stale["recorded"]["state"], stale["reported"]["state"])
    summary = result.summary
    assert {"missing": 1, "stray": 1, "other_root": 1, "stale": 1} == summary["disagreement"]
    assert 1 == summary["disagreement_later"]
    assert "missing 1, stray 1, other_root 1, stale 1" in summary["text_report"]
    assert FLAGS | {1: {"UNDER_REPLICATED"}} == flags_of(result)
    assert ("snap-1", 0, {}) == (
        summary["snapshot_id"],
        summary["agreement"]["compared"],
        summary["reports"]["assumed"],
    )
    assert result.run_id == f"snap-1-reports-{summary['reports']['key']}"
    assert [("dn-a", "missing", 1), ("dn-b", "stale", 1), ("dn-c", "other_root", 1)] == answers(
        tmp_path / "out", QUERIES[-1]
    )[:3]
    assert {"replicate"} == actions_of(result), "nothing is ordered of barred replicas"


Change = Callable[[Path, int], object]


def edited(change: Callable[[list[dict[str, Any]]], object]) -> Change:
    """Return what changes the rows of a report of dn-a and leaves its name."""

    def edit(reports: Path, _at_ms: int) -> None:
        (path,) = (reports / "dn-a").iterdir()
        table = pq.read_table(path)
        rows = table.to_pylist()
        change(rows)
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)

    return edit


def column(change: Callable[[pa.Table], pa.Table]) -> Change:
    """Return what changes the columns of a report of dn-a."""

    def edit(reports: Path, _at_ms: int) -> None:
        (path,) = (reports / "dn-a").iterdir()
        pq.write_table(change(pq.read_table(path)), path)

    return edit


def cut(reports: Path, _at_ms: int) -> None:
    (path,) = (reports / "dn-a").iterdir()
    path.write_bytes(path.read_bytes()[:-20])


def flipped(reports: Path, _at_ms: int) -> None:
    (path,) = (reports / "dn-a").iterdir()
    whole = bytearray(path.read_bytes())
    whole[60] ^= 8
    path.write_bytes(whole)


def other_name(reports: Path, _at_ms: int) -> None:
    (path,) = (reports / "dn-a").iterdir()
    path.rename(path.with_name("part-00000.parquet"))


def other_directory(reports: Path, _at_ms: int) -> None:
    (reports / "dn-a").rename(reports / "dn-x")


def twice(reports: Path, _at_ms: int) -> None:
    shutil.copytree(reports / "dn-a", reports / "deep" / "dn-a")


def interleaved(reports: Path, at_ms: int) -> None:
    write_report(reports, "dn-a", [], at_ms + 1, start_id=1)
    write_report(reports, "dn-a", [], at_ms + 2)


def too_old(reports: Path, at_ms: int) -> None:
    shutil.rmtree(reports)
    write_reports(reports, copies(1, "ab"), at_ms - HOUR_MS)


def mostly_old(reports: Path, at_ms: int) -> None:
    for name in "xyz":
        write_report(reports, f"dn-{name}", [], at_ms - HOUR_MS)


def early(reports: Path, at_ms: int) -> None:
    write_report(reports, "dn-a", [], at_ms + 2 * HOUR_MS)


def other_cluster(reports: Path, at_ms: int) -> None:
    write_report(reports, "dn-b", [], at_ms + 1, cluster_id="cluster-2")


def set_in(place: int, **values: Any) -> Change:
    return edited(lambda rows: rows[place].update(values))


NAMED = r"reports, dn-a/\d{8}T\d{6}\.\d{3}Z-00000000000000ab\.parquet: "


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (cut, r"dn-a/\d{8}T"),
        (flipped, r"(?i)corrupt|checksum|cannot be read"),
        (column(lambda t: t.drop_columns(["root"])), f"{NAMED}column root is missing"),
        (
            column(lambda t: t.set_column(0, "datanode_id", pa.array([1] * len(t)))),
            f"{NAMED}column datanode_id is bigint, must be string",
        ),
        (other_name, r"dn-a/part-00000\.parquet is not <datanode id>/<UTC time>"),
        (other_directory, "dn-x/.* datanode_id is not that of the directory"),
        (twice, "two datanodes have the id dn-a: .*deep/dn-a/"),
        (interleaved, "two datanodes have the id dn-a"),
        (too_old, r"all are too old, first dn-a/\d{8}T"),
        (mostly_old, r"only 2 of 5 nodes .*, 50 % are required; missing: dn-x/\d{8}T"),
        (early, f"{NAMED}reported_at_ms is in the future"),
        (other_cluster, "cluster_id is cluster-. in dn-./.*, cluster-. in dn-./"),
        (edited(lambda rows: rows.pop()), f"{NAMED}container_id must be null in one row"),
        (edited(lambda rows: rows.pop(0)), f"{NAMED}replica_count is 1, of 0 rows"),
        (set_in(-1, report_version=2), f"{NAMED}report_version is not 1"),
        (set_in(0, reported_at_ms=1), f"{NAMED}reported_at_ms is not the time in the name"),
        (set_in(0, datanode_id=None), f"{NAMED}datanode_id is not that of the directory"),
        (set_in(-1, rack=None), f"{NAMED}rack is null in the row of the datanode"),
        (set_in(-1, op_state="GONE"), r"nodes/.*op_state is none of .*dn-a"),
        (set_in(0, state="BROKEN"), r"replicas/.*state is none of .*datanode_id dn-a"),
        (
            lambda reports, at_ms: write_report(reports, "dn-a", copies(1, "aa"), at_ms),
            "container 1: two replicas on datanode dn-a",
        ),
        (lambda reports, _: shutil.rmtree(reports), "has no report of a datanode"),
    ],
)
def test_invalid_report_is_refused(tmp_path: Path, change: Change, words: str) -> None:
    """
    File and column are named, and nothing is left that reads as a result.
    """
    at_ms, reports = now_ms(), tmp_path / "reports"
    write_reports(reports, copies(1, "ab"), at_ms)
    change(reports, at_ms)

    with pytest.raises((SnapshotRefused, OSError), match=words) as refused:
        verify(VerifyRequest("", tmp_path / "out", reports=str(reports)))

    assert getattr(refused.value, "hint", "x")
    assert not list((tmp_path / "out").glob("run_id=*"))
