"""Snapshots as they are met in life: the right answer, or one clear error and nothing half-written.

What is right is said here by a few lines of plain Python over the rows, and not by the judge.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_verify import job
from suture.runtime.exit_codes import ExitCode
from tests.support.faults.small_disk import small_disk
from tests.support.verification.snapshots import NodeRow, SnapshotRows, container, gather

Write = Callable[[Path], Path]

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def rows() -> SnapshotRows:
    """Return three containers of which the second differs."""
    return gather(
        [
            container(1, "R CLOSED 10", "C=7x3"),
            container(2, "R CLOSED 10", "C=7x2 C=9"),
            container(3, "EC CLOSED", "C#1=1 C#2=2 C#3=3 C#4=4 C#5=5"),
        ]
    )


def differing(cluster: SnapshotRows) -> list[int]:
    """Return the containers of Ratis of which two replicas have different roots."""
    roots: dict[int, set[int | None]] = {}
    for row in cluster.replicas:
        roots.setdefault(row.container_id, set()).add(row.root)
    kinds = {box.container_id: box.replication_type for box in cluster.containers}
    return sorted(i for i, own in roots.items() if kinds[i] == "RATIS" and len(own - {None}) > 1)


class Command:
    """`suture-verify`, in this process."""

    def __init__(self, patch: pytest.MonkeyPatch, said: pytest.CaptureFixture[str]) -> None:
        self._patch = patch
        self._said = said

    def __call__(self, snapshot: Path, out: Path) -> tuple[int, str]:
        """Verify; return the exit code, and what was said of an error."""
        self._patch.setattr(sys, "argv", ["suture-verify", str(snapshot), "--out", str(out)])
        code = 0
        try:
            job.main()
        except SystemExit as end:
            code = int(end.code or 0)
        lines = self._said.readouterr().err.splitlines()
        errors = [line for line in lines if line.startswith("suture-verify: ")]
        assert len(errors) == (code == ExitCode.FAILED), lines
        assert not any("Traceback" in line for line in lines)
        return code, "".join(errors)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def reconciled(out: Path) -> list[int]:
    """Return the containers that a result has reconciled."""
    files = [str(path) for path in (out / "reconcile_plan").rglob("*.parquet")]
    table = pq.read_table(files, partitioning=None)
    return sorted(table["container_id"].to_pylist())


def changed(file: str, change: Callable[[bytes], bytes]) -> Write:
    """Return how to write a snapshot of which one file is other bytes."""

    def write(directory: Path) -> Path:
        path = rows().write(directory) / file
        path.write_bytes(change(path.read_bytes()))
        return directory

    return write


def flipped(place: int) -> Callable[[bytes], bytes]:
    return lambda whole: bytes([*whole[:place], whole[place] ^ 16, *whole[place:][1:]])


def empty(directory: Path) -> Path:
    directory.mkdir()
    return directory


def unsealed(directory: Path) -> Path:
    (rows().write(directory) / "manifest.json").unlink()
    return directory


def without_a_node(directory: Path) -> Path:
    less = rows()
    del less.nodes[0]
    return less.write(directory)


def mixed(directory: Path, *, is_counted: bool) -> Path:
    """Write a snapshot into which files of another cluster came, whose tools wrote nullable
    columns."""
    rows().write(directory)
    other = gather([container(9, "R CLOSED 10", "C=7x3")])
    counts = {}
    for name in ("containers", "replicas", "nodes", "pending_ops"):
        table = other.table(name)
        place = table.schema.get_field_index("snapshot_id")
        table = table.set_column(
            place, "snapshot_id", pa.array(["other"] * len(table), pa.string())
        )
        table = table.cast(pa.schema([field.with_nullable(True) for field in table.schema]))
        pq.write_table(table, directory / name / "part-00001.parquet")
        counts[name] = sum(pq.read_metadata(f).num_rows for f in (directory / name).iterdir())
    if is_counted:
        said = json.loads((directory / "manifest.json").read_text())
        (directory / "manifest.json").write_text(json.dumps(said | {"rows": counts}))
    return directory


REFUSED: dict[str, tuple[Write, str]] = {
    "a directory that is empty": (empty, "has no manifest.json"),
    "an export that was cut off": (unsealed, "has no manifest.json"),
    "half a manifest": (changed("manifest.json", lambda b: b[:-30]), "manifest.json is not JSON"),
    "a file that was cut off": (
        changed("replicas/part-00000.parquet", lambda b: b[:-100]),
        "table replicas/ cannot be read: part-00000.parquet: ",
    ),
    "a file without a byte": (
        changed("nodes/part-00000.parquet", lambda _: b""),
        "table nodes/ cannot be read: part-00000.parquet: ",
    ),
    "a flipped bit in a footer": (
        changed("containers/part-00000.parquet", flipped(-8)),
        "table containers/ cannot be read: part-00000.parquet: ",
    ),
    "a node that is missing": (without_a_node, "datanode dn-1-0 that table nodes/ does not list"),
    "files of two clusters": (
        lambda directory: mixed(directory, is_counted=False),
        "table nodes/ has 14 rows, its manifest says 11",
    ),
    "files of two clusters, as many as are said": (
        lambda directory: mixed(directory, is_counted=True),
        "table nodes/: 3 row(s) where snapshot_id is not the manifest's",
    ),
    "a cluster without nodes": (SnapshotRows().write, "table nodes/ is empty"),
    "a column less": (
        lambda directory: rows().write(directory, change={"replicas": lambda t: t.drop(["root"])}),
        "table replicas/, part-00000.parquet: column root is missing",
    ),
    "an older schema": (
        lambda directory: rows().write(directory, manifest={"schema_version": 4}),
        "has schema version 4, this job reads 5",
    ),
    "a newer schema": (
        lambda directory: rows().write(directory, manifest={"schema_version": 6}),
        "has schema version 6, this job reads 5",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_snapshot_is_refused_in_one_line(
    tmp_path: Path, command: Command, case: str
) -> None:
    """The exit code is 1, and no file is written."""
    write, words = REFUSED[case]

    code, said = command(write(tmp_path / "s"), tmp_path / "out")

    assert code == ExitCode.FAILED
    assert words in said
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


def in_many_files(directory: Path) -> None:
    """Put each row of a snapshot into a file of its own, among files without a row; the files
    differ in what may be null."""
    for name in ("containers", "replicas", "nodes"):
        path = directory / name / "part-00000.parquet"
        whole = pq.read_table(path)
        for i in range(12):
            one = whole.slice(i, 1) if i < len(whole) else whole.slice(0, 0)
            if i % 2:
                one = one.cast(pa.schema([field.with_nullable(True) for field in one.schema]))
            pq.write_table(one, path.with_name(f"part-{i:05d}.parquet"))


def added(table: pa.Table) -> pa.Table:
    """Return a table with columns of a later release, one of which has a known name within."""
    later = pa.array([{"root": 1, "container_id": 9}] * len(table))
    return table.append_column("added", later).append_column("too", pa.array([1] * len(table)))


NAMES = ("a b", "ünï-日本", "a%20b", "{a,b}", "[x]*?", "a#b", "a=b", "run_id=x", "-a", "a:b", "'\"")


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that several tests look at; none of them changes it."""

    top: Path
    snapshot: Path
    out: Path
    code: int


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The three containers, verified in a directory whose name has all odd characters."""
    top = tmp_path_factory.mktemp("finished")
    named = top.joinpath(*NAMES)
    named.mkdir(parents=True)
    snapshot, out = rows().write(named / "s"), named / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["suture-verify", str(snapshot), "--out", str(out)])
        with pytest.raises(SystemExit) as end:
            job.main()
    return Finished(top, snapshot, out, int(end.value.code or 0))


def test_equivalent_snapshots_get_the_same_result(
    tmp_path: Path, command: Command, finished: Finished
) -> None:
    """The layout of the files does not matter, nor do columns and facts of a later release."""
    tables = ("containers", "replicas", "nodes", "pending_ops")
    later = rows().write(
        tmp_path / "s", change=dict.fromkeys(tables, added), manifest={"added": {"x": 1}}
    )
    in_many_files(later)

    code, _ = command(later, tmp_path / "out")

    assert finished.code == code == ExitCode.TO_DO
    assert reconciled(finished.out) == reconciled(tmp_path / "out") == differing(rows()) == [2]


def test_directories_may_be_called_anything(finished: Finished) -> None:
    """Characters that are patterns, codes or options elsewhere are part of the names of snapshot
    and result.
    """
    assert finished.code == ExitCode.TO_DO
    assert reconciled(finished.out) == [2]
    assert [path.name for path in finished.top.iterdir()] == [NAMES[0]]


def test_datanodes_named_like_sql_are_only_names(tmp_path: Path, command: Command) -> None:
    """
    Dead datanodes of such names get no scan of their replicas, whose roots are not known; live ones
    do.
    """
    words = ("${spark.app.name}", "{x}", "'\\", 'a"`\n--', "/*+ x */")
    cluster = gather([container(i, "R CLOSED 10", "Cx2 C?d") for i in range(len(words))])

    def renamed(name: str) -> str:
        return name + words[int(name.split("-")[1])]

    cluster.nodes = [replace(n, datanode_id=renamed(n.datanode_id)) for n in cluster.nodes]
    cluster.replicas = [replace(r, datanode_id=renamed(r.datanode_id)) for r in cluster.replicas]

    command(cluster.write(tmp_path / "s"), tmp_path / "out")

    files = [str(path) for path in (tmp_path / "out" / "plan").rglob("*.parquet")]
    plan = pq.read_table(files, partitioning=None).to_pylist()
    scanned = sorted(node for row in plan if row["action"] == "scan" for node in row["targets"])
    assert scanned == sorted(n.datanode_id for n in cluster.nodes if n.health == "HEALTHY")
    assert len(scanned) == 2 * len(words)


def test_clusters_in_which_nothing_can_differ_are_clean(tmp_path: Path, command: Command) -> None:
    """One cluster has no container, and in the other no root is known yet. Scanners set the
    roots on their own.
    """
    young = gather([container(i, "R CLOSED 10", "Cx3") for i in range(1, 5)])
    for name, cluster in (("none", SnapshotRows(nodes=[NodeRow("dn-1")])), ("young", young)):
        code, _ = command(cluster.write(tmp_path / name), tmp_path / f"{name}-out")

        assert code == ExitCode.OK
        assert reconciled(tmp_path / f"{name}-out") == differing(cluster) == []


def test_a_disk_that_is_full_has_no_half_a_result(tmp_path: Path, command: Command) -> None:
    """No partial result remains, whichever file fills the disk. The run finishes once there is
    room.
    """
    snapshot = rows().write(tmp_path / "s")
    codes = []
    with small_disk(tmp_path / "disk") as disk:
        for left_kib in (0, 40, 1024):
            out = disk.path / str(left_kib)
            disk.fill(leave_bytes=left_kib * 1024)
            code, said = command(snapshot, out)
            codes.append(code)
            if code == ExitCode.FAILED:
                assert "No space left on device" in said
                assert not list(out.glob("run_id=*/_SUCCESS")), left_kib
            else:
                assert reconciled(out) == [2]
            shutil.rmtree(out, ignore_errors=True)

        assert codes[:2] == [ExitCode.FAILED] * 2
        assert codes[-1] == ExitCode.TO_DO


def test_finished_result_is_returned_from_a_read_only_disk(
    tmp_path: Path, command: Command, finished: Finished
) -> None:
    """A run that would have to be done is refused, and the error names the path that cannot be
    written.
    """
    snapshot = finished.snapshot
    with small_disk(tmp_path / "disk") as disk:
        done, other = disk.path / "done", disk.path / "other"
        shutil.copytree(finished.out, done)
        other.mkdir()
        remount = ["mount", "-o", "remount,ro", str(disk.path)]
        subprocess.run(remount, check=True)

        assert command(snapshot, done) == (ExitCode.TO_DO, "")
        for out in (other, disk.path / "new"):
            code, said = command(snapshot, out)
            assert code == ExitCode.FAILED
            assert str(out) in said
        assert sorted(path.name for path in disk.path.iterdir()) == ["done", "other"]
