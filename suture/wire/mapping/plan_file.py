"""Reads the plan of a verification by the Spark job, for the SCM."""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from health.tables.snapshot_columns import RESULT_VERSION
from suture.config.bounded_read import read_up_to
from suture.errors import Code, RefusedError
from suture.wire.mapping import addresses
from suture.wire.v1 import scm_pb2

UINT64 = 2**64

PLAN_ORDER: Final = [(name, "ascending") for name in ("priority", "container_id", "action")]
"""Order of the rows, the most urgent first. No two rows are equal in this order, so the order of a
plan is always the same."""

ROWS_PER_PAGE: Final = 5_000  # rows per message; a row takes kilobytes, and exists twice meanwhile

SCAN: Final = "scan"  # not an SCM command; the applying process calls the datanode


TEXT_BYTES_MAX: Final = 64 * 1024**2
"""Maximum size of a JSON file of a run. It has about 100 bytes per datanode."""

MANIFEST: Final = "manifest.json"

SUCCESS: Final = "_SUCCESS"


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished run of the Spark job, at a path or an address of any file system."""

    name: str
    """Path or address of the run, as the caller gave it."""
    files: Any
    path: str
    manifest: dict[str, Any]
    attempt: str = ""
    """The attempt of the run whose rows are valid. Each table has one directory per attempt."""

    @classmethod
    def opened(cls, name: str) -> "FinishedRun":
        """Open the run at `name`. Raise RefusedError if there is none, or if it is not finished or
        cannot be read."""
        place = addresses.opened(name)
        try:
            is_whole = (place / SUCCESS).is_file()
        except OSError as error:
            raise unreadable(name, error) from error
        if not is_whole:
            raise RefusedError(
                Code.STALE_PLAN,
                f"cannot read the run {name}: it is not complete, it has no _SUCCESS file",
                hint="name the directory that suture-verify printed",
            )
        run = cls(name, place.files, place.path, {})
        attempt = run._read(SUCCESS).decode(errors="replace").strip()
        manifest = run.json_object(MANIFEST)
        if (version := manifest.get("result_version")) != RESULT_VERSION:
            raise RefusedError(
                Code.STALE_PLAN,
                f"cannot read the run {name}: result version {version}, expected {RESULT_VERSION}",
                hint="verify the cluster with suture-verify of this version",
            )
        if attempt != manifest.get("attempt", ""):
            told = ValueError(f"{SUCCESS} and {MANIFEST} belong to different attempts")
            raise unreadable(name, told)
        return replace(run, manifest=manifest, attempt=attempt)

    def json_object(self, file: str) -> dict[str, Any]:
        """Return the object in a JSON file of the run. Raise RefusedError if it cannot be read."""
        text = self._read(file)
        try:
            found = json.loads(text)
        except ValueError as error:
            raise unreadable(self.name, error) from error
        if not isinstance(found, dict):
            raise unreadable(self.name, ValueError(f"{file} is not a JSON object"))
        return found

    def _read(self, file: str) -> bytes:
        try:
            with self.files.open_input_stream(f"{self.path}/{file}") as stream:
                found = read_up_to(stream, TEXT_BYTES_MAX + 1)
        except OSError as error:
            raise unreadable(self.name, error) from error
        if len(found) > TEXT_BYTES_MAX:
            told = ValueError(f"{file} has more than {TEXT_BYTES_MAX} bytes")
            raise unreadable(self.name, told)
        return found

    def rows(self, table: str, columns: Collection[str]) -> list[dict[str, Any]]:
        """Return the given columns of a table as a list of rows, the most urgent row first. Raise
        OSError or ArrowException if the table cannot be read."""
        found: list[dict[str, Any]] = self.table(table, columns).to_pylist()
        return found

    def table(
        self, table: str, columns: Collection[str] = (), *, only: str = "", but: str = ""
    ) -> Any:
        """Return the rows of a table as an Arrow table, the most urgent row first.

        If `only` is given, only rows with this action are returned. If `but` is given, rows with
        this action are omitted. Without `columns`, all columns are returned. Raise OSError or
        ArrowException if the table cannot be read.
        """
        import pyarrow.parquet  # imported late, so that other commands start without it

        above, _, own = self.path.rpartition("/")
        directory = f"{above}/{table}/{own}/attempt={self.attempt}"
        wanted = [("action", *rule) for rule in (("==", only), ("!=", but)) if rule[1]]
        read = pyarrow.parquet.read_table(
            directory,
            filesystem=self.files,
            partitioning=None,
            columns=[*{*columns, *dict(PLAN_ORDER)}] if columns else None,
            page_checksum_verification=True,
            filters=wanted or None,
        )
        return read.sort_by(PLAN_ORDER)  # each file is sorted, but not the whole table

    def request(self, rows: Iterable[scm_pb2.PlanRow] = ()) -> scm_pb2.ApplyPlanRequest:
        """Return a request to apply these rows of the plan. Raise RefusedError if the manifest of
        the run is incomplete."""
        try:
            snapshot_id, run_id = self.manifest["snapshot_id"], self.manifest["run_id"]
        except KeyError as error:
            raise unreadable(self.name, error) from error
        return scm_pb2.ApplyPlanRequest(snapshot_id=snapshot_id, run_id=run_id, rows=rows)

    @property
    def scope(self) -> str:
        """A text about the containers that a partial run has verified; "" if the run has verified
        all containers."""
        nodes = self.manifest.get("changed_nodes", [])
        if not nodes:
            return ""
        return (
            f"partial plan: only containers with a replica on {', '.join(nodes)} were verified; "
            "nothing is said of the others"
        )


def unreadable(name: str, error: Exception) -> RefusedError:
    """Return the error for a run that has a missing or damaged file."""
    return RefusedError(Code.MALFORMED_REQUEST, f"cannot read the plan in {name}: {error}")


def read_plan(run: FinishedRun, *, only: str = "", but: str = "") -> scm_pb2.ApplyPlanRequest:
    """Return a request with the rows of `reconcile_plan/` and `plan/` of a finished run, in this
    order.

    If `only` is given, only rows with this action are returned. If `but` is given, rows with this
    action are omitted. Raise RefusedError if the plan cannot be read.
    """
    request = run.request()
    for page in plan_pages(run, only=only, but=but):
        request.rows.extend(page.rows)
    return request


def plan_pages(
    run: FinishedRun, *, only: str = "", but: str = ""
) -> Iterator[scm_pb2.ApplyPlanRequest]:
    """Yield the rows that `read_plan` returns as several requests.

    All files are read before the first request. Roots are signed in Parquet, because Spark has no
    unsigned 64-bit type; they are converted to unsigned numbers. Raise RefusedError if the plan
    cannot be read.
    """
    import pyarrow

    try:
        tables = [
            (made_of, run.table(name, only=only, but=but))
            for name, made_of in (("reconcile_plan", plan_row), ("plan", action_row))
        ]
        for made_of, table in tables:
            for first in range(0, table.num_rows, ROWS_PER_PAGE):
                rows = map(made_of, table.slice(first, ROWS_PER_PAGE).to_pylist())
                yield run.request(rows)
    except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException) as error:
        raise unreadable(run.name, error) from error


@dataclass(frozen=True, slots=True)
class PlannedScans:
    """The rows of a plan that request a scan, in order. A plan may have a million of them.
    Therefore, they are kept in Arrow and converted in small groups."""

    table: Any

    @classmethod
    def of(cls, run: FinishedRun) -> "PlannedScans":
        """Read and validate the rows of a run, so that a later conversion cannot fail. Raise
        RefusedError if they cannot be read."""
        import pyarrow

        try:
            table = run.table("plan", ("container_id", "targets"), only=SCAN)
            table.validate(full=True)
        except (OSError, ValueError, KeyError, pyarrow.ArrowException) as error:
            raise unreadable(run.name, error) from error
        return cls(table)

    def __iter__(self) -> Iterator[scm_pb2.PlanRow]:
        for first in range(0, len(self), ROWS_PER_PAGE):
            for row in self.table.slice(first, ROWS_PER_PAGE).to_pylist():
                yield scm_pb2.PlanRow(
                    container_id=row["container_id"], action=SCAN, targets=row["targets"]
                )

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def only(self, wanted: Sequence[bool]) -> "PlannedScans":
        """Return the rows for which `wanted` is True."""
        import pyarrow

        return PlannedScans(self.table.filter(pyarrow.array(wanted, pyarrow.bool_())))


def plan_row(row: dict[str, object]) -> scm_pb2.PlanRow:
    """Convert one row of `reconcile_plan/` to a message."""
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
    """Convert one row of `plan/` to a message."""
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
    """Convert one replica of a row of `reconcile_plan/` to a message."""
    result = scm_pb2.PlanReplica(
        datanode_id=str(replica["datanode_id"]),
        state=str(replica["state"]),
    )
    root = replica["root"]
    if isinstance(root, int):
        result.root = root % UINT64
    return result
