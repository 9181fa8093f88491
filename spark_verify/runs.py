"""Names runs, finds finished runs with the same input, and manages the files of attempts.

    out/<table>/run_id=<id>/attempt=<hex>/   rows of a run; a table holds those of all runs
    out/runs/run_id=<id>/                    a row that names the attempt whose rows are the run
    out/run_id=<id>/                         texts of a run, which is finished if _SUCCESS exists
    out/.attempt=<hex>/                      intermediate rows, removed when the attempt ends

Spark's committers write the tables. Each attempt writes to its own directories. Therefore, readers
never see the files of a killed attempt, or of another process that executes the same run. When all
tables are complete, the texts are written, then the row in `runs`, and finally _SUCCESS. No file is
renamed or locked, so that this works on local disks, HDFS and object stores.

A run is identified by its id. Its input is recorded: the snapshot, the nodes, the rules, and the
version of the job. The result of a finished run is returned again only for the same input. For
other input, the result would be wrong, because it could report containers as clean that were not
checked.
"""

import hashlib
import json
import time
import uuid
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from health.rules import Rules
from health.tables.snapshot_columns import RESULT_VERSION
from spark_verify.errors import FlagRefused, RunConflict
from spark_verify.options import VerifyOptions
from spark_verify.result_tables import RESULTS, RUNS
from spark_verify.snapshot.manifest import SnapshotManifest
from spark_verify.storage import Storage

RUN: Final = "run_id="
"""Prefix of the name of the directory of a run."""

SUCCESS: Final = "_SUCCESS"
ATTEMPT_DIRECTORY: Final = "attempt="
WORK: Final = ".attempt="
"""Prefix of the name of the hidden directory of a running attempt."""


RUN_ID_CHARS_MAX: Final = 128
"""Maximum length of a run id. The SCM accepts no longer run id in a plan."""

DAY_MS: Final = 86_400_000

LEFT_MS: Final = DAY_MS
"""Number of milliseconds without a written file, after which an attempt counts as killed."""

IDENTITY: Final = ("snapshot_id", "cluster_id", "as_of_ms", "term", "rows")
"""Fields of a manifest that identify the snapshot."""

PACKAGES: Final = (
    *("health", "health.plan", "health.tables"),
    *("spark_verify", "spark_verify.frames", "spark_verify.report", "spark_verify.snapshot"),
    "spark_verify.tasks",
)
"""Packages whose code affects the result of a run."""


def run_id_of(
    given: str,
    manifest: SnapshotManifest,
    changed_nodes: Sequence[str],
    reports: Mapping[str, Any] | None = None,
) -> str:
    """Return the run id `given`, or an id that is computed from the input and the changed nodes.

    If the id is too long or is not a valid name of a directory, raise FlagRefused for a given id,
    and RunConflict for a computed id.
    """
    run_id = given or manifest.snapshot_id
    if reports and not given and not run_id.endswith(reports["key"]):
        run_id += f"-reports-{reports['key']}"
    if changed_nodes and not given:
        named = "\n".join(sorted(set(changed_nodes)))
        run_id += f"-changed-{zlib.crc32(named.encode()):08x}"
    refused = FlagRefused if given else RunConflict
    if not run_id.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise refused(f"invalid --run-id {run_id!r}: expected a directory name")
    if len(run_id) > RUN_ID_CHARS_MAX:
        raise refused(
            f"run id: {len(run_id)} characters are more than {RUN_ID_CHARS_MAX}",
            hint="choose a shorter --run-id",
        )
    return run_id


def inputs_of(
    manifest: SnapshotManifest,
    changed_nodes: Sequence[str],
    options: VerifyOptions,
    reports: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return all values on which a result depends, as they are recorded in the summary of the
    run."""
    own = options.own_rules
    return {
        **{name: getattr(manifest, name) for name in IDENTITY},
        "changed_nodes": sorted(set(changed_nodes)),
        "rules": asdict(Rules(**own)),
        "own_rules": sorted(own),
        "reporting_min_percent": options.reporting_min_percent,
        "sample_max": options.sample_max,
        "reports": reports,
        "result_version": RESULT_VERSION,
        "code": code_checksum(),
    }


def sources() -> Iterator[tuple[str, bytes]]:
    """Yield the path and the content of each source file of the job and of `health/`."""
    for package in PACKAGES:
        files = resources.files(package).iterdir()  # also works in a zip, under spark-submit
        for file in sorted(files, key=lambda file: file.name):
            if file.name.endswith((".py", ".j2")):
                yield f"{package.replace('.', '/')}/{file.name}", file.read_bytes()


@cache
def code_checksum() -> str:
    """Return a checksum of the source code of the job and of `health/`.

    The checksum is part of the recorded input, because other code may compute another result.
    """
    checksum = hashlib.sha256()
    for name, content in sources():
        checksum.update(name.encode() + b"\0" + content)
    return checksum.hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A running attempt to execute a run."""

    storage: Storage
    run_id: str
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def table(self, name: str) -> str:
        """Return the directory of the rows that this attempt writes to a table."""
        return table_of(self.storage.address, name, run_id=self.run_id, attempt=self.name)

    @property
    def work(self) -> str:
        """Directory of the intermediate files of the attempt. No other process reads them."""
        return f"{self.storage.address}/{WORK}{self.name}"

    def end(self) -> None:
        """Remove the intermediate files of the attempt. Errors are ignored."""
        with suppress(OSError):
            self.storage.delete(f"{WORK}{self.name}")

    def abandon(self) -> None:
        """Remove all rows and files that the attempt has written. Errors are ignored."""
        self.end()
        for name in RESULTS:
            if name != RUNS:
                with suppress(OSError):
                    self.storage.delete(f"{name}/{RUN}{self.run_id}/{ATTEMPT_DIRECTORY}{self.name}")


def table_of(out: str, name: str, *, run_id: str, attempt: str) -> str:
    """Return the directory with the rows of one attempt of a run in a table."""
    directory = f"{out}/{name}/{RUN}{run_id}"
    return directory if name == RUNS else f"{directory}/{ATTEMPT_DIRECTORY}{attempt}"


class RunSummary(BaseModel):
    """The fields in the summary of a finished run that later runs use."""

    model_config = ConfigDict(strict=True, frozen=True)

    run_id: str
    cluster_id: str
    as_of_ms: int
    changed_nodes: list[str]
    containers: int
    flagged: int
    flags: dict[str, int]
    checksum_classes: dict[str, int]
    divergent: int
    inputs: dict[str, Any]


def finished(storage: Storage, run_id: str, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the summary of a run. Return None if the run is not finished.

    Raise RunConflict if the recorded inputs of the run cannot be read, or differ from `inputs`.
    """
    if attempt_of(storage, run_id) is None:
        return None
    target = f"{storage.address}/{RUN}{run_id}"
    way_out = f"choose another --run-id, or remove {target}"
    summary = read_summary(storage, run_id)
    if not isinstance(summary.get("inputs"), dict):
        raise RunConflict(f"{target} has no readable summary.json", hint=way_out)
    known, asked = _flat(summary["inputs"]), _flat(inputs)
    different = [
        f"{name}: {known.get(name)} there, {asked.get(name)} here"
        for name in sorted(known.keys() | asked.keys())
        if known.get(name) != asked.get(name)
    ]
    if different:
        raise RunConflict(
            f"{target} is the result of another run: {'; '.join(different)}", hint=way_out
        )
    return summary


def _flat(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested inputs as one dictionary, with keys such as `rules.maintenance_min`."""
    flat: dict[str, Any] = {}
    for name, value in inputs.items():
        inner = value if isinstance(value, dict) else {}
        flat |= {f"{name}.{key}": one for key, one in inner.items()} or {name: value}
    return flat


def attempt_of(storage: Storage, run_id: str) -> str | None:
    """Return the id of the attempt that has finished a run. Return None if the run is not
    finished."""
    try:
        return storage.read_text(f"{RUN}{run_id}/{SUCCESS}").strip()
    except FileNotFoundError:
        return None


def finished_runs(storage: Storage) -> list[str]:
    """Return the ids of all finished runs in a directory of results."""
    ids = [name.removeprefix(RUN) for name in storage.listed() if name.startswith(RUN)]
    return [run_id for run_id in ids if attempt_of(storage, run_id) is not None]


def finished_summaries(storage: Storage) -> list[RunSummary]:
    """Return the summaries of all finished runs. Summaries that cannot be read are omitted."""
    found = []
    for run_id in finished_runs(storage):
        with suppress(ValidationError):
            summary = read_summary(storage, run_id) | {"run_id": run_id}
            found.append(RunSummary.model_validate(summary))
    return found


def read_summary(storage: Storage, run_id: str) -> dict[str, Any]:
    """Return the summary of a run. Return an empty dict if it is missing or damaged."""
    try:
        summary = json.loads(storage.read_text(f"{RUN}{run_id}/summary.json"))
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def remove_run(storage: Storage, run_id: str) -> None:
    """Remove a finished run.

    Its file _SUCCESS is removed first, so that readers never use an incomplete run.
    """
    name = f"{RUN}{run_id}"
    storage.delete(f"{name}/{SUCCESS}")
    for table in reversed(RESULTS):
        storage.delete(f"{table}/{name}")
    storage.delete(name)


def remove_left(storage: Storage, now_ms: int = 0) -> None:
    """Remove the files of killed attempts.

    An attempt counts as killed if it has written no file for a day.
    """
    oldest_ms = (now_ms or time.time_ns() // 1_000_000) - LEFT_MS
    directories = [name for name in storage.listed() if name.startswith(WORK)]
    tables = [name for name in RESULTS if name != RUNS]
    names = {name for table in tables for name in storage.listed(table) if name.startswith(RUN)}
    for run in sorted(names):
        own = f"{ATTEMPT_DIRECTORY}{attempt_of(storage, run.removeprefix(RUN))}"
        for table in tables:
            attempts = storage.listed(f"{table}/{run}")
            directories += [f"{table}/{run}/{name}" for name in attempts if name != own]
    for directory in directories:
        if max(storage.listed(directory).values(), default=0) < oldest_ms:
            storage.delete(directory)


def runs_to_remove(
    runs: Iterable[RunSummary], *, keep_runs: int, keep_days: int, now_ms: int
) -> list[str]:
    """Return the ids of the runs to remove, oldest first.

    A run is kept if it is one of the `keep_runs` newest runs of its cluster, or if its snapshot is
    at most `keep_days` days old. Partial runs are counted separately, so that they do not replace
    full runs. The latest full run is always kept. If `keep_runs` and `keep_days` are 0, all runs
    are kept.
    """
    kinds: dict[tuple[str, bool], list[RunSummary]] = defaultdict(list)
    order = sorted(runs, key=lambda run: (run.as_of_ms, run.run_id))
    for run in order:
        kinds[run.cluster_id, bool(run.changed_nodes)].append(run)
    kept = order if not keep_runs and not keep_days else []
    for (_, is_partial), own in kinds.items():
        count = keep_runs if is_partial else max(keep_runs, 1)
        kept += own[max(len(own) - count, 0) :]
    oldest_ms = now_ms - keep_days * DAY_MS
    return [
        run.run_id
        for run in order
        if run not in kept and not (keep_days and run.as_of_ms >= oldest_ms)
    ]


def old_runs(storage: Storage, *, keep_runs: int, keep_days: int, asked: str = "") -> list[str]:
    """Return the ids of the runs to remove from a directory of results, oldest first.

    Runs that cannot be read are kept. `asked`, the run that the caller has requested, is also kept.
    """
    now_ms = time.time_ns() // 1_000_000
    runs = finished_summaries(storage)
    found = runs_to_remove(runs, keep_runs=keep_runs, keep_days=keep_days, now_ms=now_ms)
    return [run_id for run_id in found if run_id != asked]
