"""Executes the commands of `suture-verify`, and prints their results and errors."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer

from spark_verify.catalog_tables import Catalog, check_catalog
from spark_verify.errors import FAILURES, MORE_MEMORY, CatalogRefused, FlagRefused, describe_error
from spark_verify.pipeline import VerifyRequest, VerifyResult, verify
from spark_verify.report.sql_views import views
from spark_verify.runs import old_runs, remove_run
from spark_verify.session import open_session
from spark_verify.snapshot.manifest import read_manifest
from spark_verify.stage_progress import Progress
from spark_verify.storage import Storage, address_of, is_local, storage_of
from suture.observe.json_schema import versioned
from suture.observe.terminal_escape import printable
from suture.runtime.exit_codes import ExitCode


@contextmanager
def printed_errors(*, as_json: bool) -> Iterator[None]:
    """Catch an error of the `with` block, print it, and exit the process."""
    try:
        yield
    except FAILURES as error:
        _say_error(error, as_json=as_json)
        is_usage = isinstance(error, FlagRefused)
        raise SystemExit(ExitCode.USAGE if is_usage else ExitCode.FAILED) from error


def verify_and_publish(
    request: VerifyRequest, keep: Mapping[str, int], catalog: str, kind: str, *, as_json: bool
) -> ExitCode:
    """Verify a snapshot and print the result. Return the exit code.

    If `catalog` is set, also publish the result to this catalog. Then remove old runs.
    """
    started_s = time.monotonic()

    def progress(text: str) -> None:
        _tell(f"[{time.monotonic() - started_s:6.1f} s] {text}", err=True)

    with printed_errors(as_json=as_json):
        if catalog:
            check_catalog(catalog)
        result = verify(request, progress)
        tables = _published(request, result, catalog, kind, progress) if catalog else None
    _say_result(result, as_json=as_json)
    if any(keep.values()):
        _remove_old(result, request, keep, tables, progress)
    progress(f"done{', partial' if result.summary['is_partial'] else ''}: {result.address}")
    return ExitCode(result.summary["exit_code"])


def rules_of(place: str, master: str) -> dict[str, int]:
    """Return the health rules in the manifest of a snapshot.

    `place` is the path or address of the snapshot. If it is empty, return an empty dict.
    """
    return read_manifest(_storage(address_of(place), master)).rules if place else {}


def print_options(known: dict[str, dict[str, Any]], *, as_json: bool) -> None:
    """Print the value of each option, and where it was set, as a table or as JSON."""
    if as_json:
        typer.echo(json.dumps(versioned({"options": known})))
        return
    for name, one in known.items():
        _tell(f"{name:<22} {one['value']:>10,}  {one['from']:<8}  {one['meaning']}")


def print_views(out: str, engine: str) -> None:
    """Print SQL statements that create views of the result tables in a directory."""
    with printed_errors(as_json=False):
        for statement in views(address_of(out), engine):
            typer.echo(statement)


def one_snapshot(snapshot: str, *, named: str, reports: str) -> str:
    """Return the snapshot, which is given as the argument `snapshot` or as the option `named`.

    Raise FlagRefused if both are given. Also raise it if neither of them nor reports are given.
    """
    if (snapshot and named) or not (snapshot or named or reports):
        raise FlagRefused("invalid input: expected one SNAPSHOT, --reports DIR, or both")
    return snapshot or named


def _storage(address: str, master: str) -> Storage:
    """Return an object that reads the small files at an address. Spark is started only for a remote
    address."""
    spark = None if is_local(address) else open_session(row_count=0, master=master)
    return storage_of(address, spark)


def _published(
    request: VerifyRequest, result: VerifyResult, namespace: str, kind: str, progress: Progress
) -> Catalog:
    """Write the rows of a run to a catalog, and return the catalog.

    Raise CatalogRefused if this fails. The result in files is complete in any case.
    """
    progress(f"writing tables of {namespace}")
    try:
        row_count = int(result.summary["rows"]["replicas"])
        spark = open_session(row_count=row_count, master=request.master)
        found = Catalog(spark, namespace, kind)
        found.publish(result.out, run_id=result.run_id, attempt=result.attempt)
    except FAILURES as error:
        raise CatalogRefused(
            f"cannot write the tables of {result.address} to {namespace}: {describe_error(error)}",
            hint="the result is complete; run the same command to try again",
        ) from error
    return found


def _remove_old(
    result: VerifyResult,
    request: VerifyRequest,
    keep: Mapping[str, int],
    tables: Catalog | None,
    progress: Progress,
) -> None:
    """Remove old runs from the result directory.

    If this fails, print the error. The result of the current run remains valid.
    """
    try:
        storage = _storage(result.out, request.master)
        old = old_runs(storage, asked=result.run_id, **keep)
        if tables:
            tables.withdraw(old)
        for run_id in old:
            remove_run(storage, run_id)
            progress(f"removed run {run_id}: an old run")
    except FAILURES as error:
        progress(f"old runs were not removed: {describe_error(error)}")


def _say_error(error: Exception, *, as_json: bool) -> None:
    message = describe_error(error)
    hint = getattr(error, "hint", MORE_MEMORY if isinstance(error, MemoryError) else "")
    code = getattr(error, "code", "VERIFY_FAILED")
    if as_json:
        facts: dict[str, Any] = {"code": code, "message": message, "hint": hint, "facts": {}}
        typer.echo(json.dumps(versioned({"error": facts})))
    for line in (f"suture-verify: {message}", *([f"hint: {hint}"] if hint else [])):
        _tell(line, err=True)


def _say_result(result: VerifyResult, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(versioned({"path": result.address} | result.summary)))
        return
    for line in (*result.summary["text_report"].split("\n"), f"{result.address}/report.html"):
        _tell(line)


def _tell(text: str, *, err: bool = False) -> None:
    """Print one line. Control characters in the text are escaped."""
    typer.echo(printable(text), err=err)
