"""What names a run, when a finished one is returned again, and who may write one.

    out/<table>/run_id=<id>/     rows of a run; a table holds those of all runs
    out/<table>/_schema.json     what its columns are
    out/runs/run_id=<id>/        a row that says that all tables of the run are whole
    out/run_id=<id>/             texts of a run, which is finished if there is a _SUCCESS
    out/.run_id=<id>.partial/    on a local disk, a run that grows, locked by the process that
                                 writes it, in a directory of its attempt's own, laid out as `out`;
                                 when it is whole its tables are moved to their places, then its row
                                 of `runs`, then its texts. Who makes or removes such a directory,
                                 or a run, has `out` locked meanwhile

Elsewhere nothing can be locked, and in a store nothing renamed. There a run grows where it will
be, in files that bear the name of their attempt. When all are there, the attempt claims the run;
then its row of `runs` is written, and _SUCCESS, which says whose files are the run. Readers take no
others (`files_of`); what other attempts left is removed after that.

A run answers one question: this snapshot, these nodes, these rules, this version of the job. Its
answer is returned again to that question only. To any other it would be a wrong answer that looks
right: containers that were never looked at would be called clean.
"""

import hashlib
import json
import re
import time
import uuid
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from health.rules import Rules
from spark_verify.errors import FlagRefused, RunConflict
from spark_verify.file_systems import Place
from spark_verify.input_columns import RESULT_VERSION, SAMPLE_MAX
from spark_verify.result_tables import RESULTS, RUNS, describe_tables
from spark_verify.run_directories import (
    RUN,
    alone,
    busy,
    partial_of,
    remove_unlocked,
    work_directory,
)
from spark_verify.snapshot.manifest import Manifest
from spark_verify.snapshot.snapshot_reading import parquet_files

SUCCESS: Final = "_SUCCESS"
FIRST: Final = "health"
"""The table that a task writes first."""

TEXTS: Final = ("summary.json", "report.html", "manifest.json")
"""Files of a run beside its tables."""

RUN_ID_CHARS_MAX: Final = 128
"""Of a plan by a longer name the control plane takes no row."""

CLAIM: Final = "_COMMIT"
"""How the name begins of the file by which an attempt says that it is about to become the run."""

CLAIM_S_MAX: Final = 60.0  # how long it waits for others that said so: they need a second or two
CLAIM_POLL_S: Final = 0.1

SUFFIX: Final = re.compile(r"-[0-9a-f]{12}(?=\.parquet)")
"""What the name of a file says of its attempt."""

LEFT_MS: Final = 24 * 3_600_000
"""A run that did not grow for so long was killed, where nobody can lock it."""

LABELS: Final = {
    "snapshot_id": "snapshot",
    "cluster_id": "cluster",
    "as_of_ms": "instant of the snapshot",
    "rows": "rows of the snapshot",
    "changed_nodes": "changed nodes",
    "result_version": "result version",
    "code": "version of the code",
}
"""Of what a run is made from; what is not here is called by its own name."""

SOURCES: Final = (".py", ".j2")
PACKAGES: Final = (
    *("health", "health.plan", "health.tables"),
    *("spark_verify", "spark_verify.report", "spark_verify.snapshot", "spark_verify.tasks"),
)
"""What a result follows from beside its input."""


def run_id_of(given: str, manifest: Manifest, changed_nodes: Sequence[str]) -> str:
    """Return the id of a run: the given one, else one that follows from snapshot and nodes.

    Raises FlagRefused, RunConflict when it would name no directory, or is too long.
    """
    run_id = given or manifest.snapshot_id
    if changed_nodes and not given:
        named = "\n".join(sorted(set(changed_nodes)))
        run_id += f"-changed-{zlib.crc32(named.encode()):08x}"
    refused = FlagRefused if given else RunConflict
    if not run_id.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise refused(f"run id {run_id!r} is no name for a directory")
    if len(run_id) > RUN_ID_CHARS_MAX:
        raise refused(
            f"run id: {len(run_id)} characters are more than {RUN_ID_CHARS_MAX}",
            hint="choose a shorter --run-id",
        )
    return run_id


def inputs_of(
    manifest: Manifest,
    *,
    changed_nodes: Sequence[str],
    rules: Rules,
    reporting_min_percent: int,
    own_rules: Sequence[str] = (),
    sample_max: int = SAMPLE_MAX,
) -> dict[str, Any]:
    """Return everything that a result follows from, as it stands in its summary."""
    return {
        "snapshot_id": manifest.snapshot_id,
        "cluster_id": manifest.cluster_id,
        "as_of_ms": manifest.as_of_ms,
        "term": manifest.term,
        "rows": dict(manifest.rows),
        "changed_nodes": sorted(set(changed_nodes)),
        "rules": asdict(rules),
        "own_rules": list(own_rules),
        "reporting_min_percent": reporting_min_percent,
        "sample_max": sample_max,
        "result_version": RESULT_VERSION,
        "code": code_checksum(),
    }


@cache
def code_checksum() -> str:
    """Return a checksum over the job's and the judge's sources: another version may judge
    otherwise."""
    checksum = hashlib.sha256()
    for package in PACKAGES:
        files = resources.files(package).iterdir()  # also in a zip, under spark-submit
        for file in sorted(files, key=lambda file: file.name):
            if file.name.endswith(SOURCES):
                checksum.update(f"{package}/{file.name}".encode() + b"\0" + file.read_bytes())
    return checksum.hexdigest()[:12]


def finished(target: Path | Place, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the summary of the finished run at `target`; None when there is none.

    Raises RunConflict when it was made from anything else than `inputs`, or does not say from what.
    """
    target = Place.of(target)
    if not (target / SUCCESS).is_file():
        return None
    way_out = f"choose another --run-id, or remove {target}"
    summary = read_summary(target)
    if summary is None:
        raise RunConflict(
            f"{target} has a _SUCCESS file and no summary.json that can be read", hint=way_out
        )
    known = summary.get("inputs")
    if not isinstance(known, dict):
        raise RunConflict(
            f"{target} does not say what it was made from: an older version wrote it", hint=way_out
        )
    different = _differences(known, inputs)
    if different:
        raise RunConflict(
            f"{target} is the result of another run: {'; '.join(different)}", hint=way_out
        )
    return summary


def finished_runs(out: Place) -> list[Place]:
    """Return the runs of a directory of results that are whole."""
    runs = [one.place for one in out.listed() if one.place.name.startswith(RUN)]
    return [run for run in runs if _is_finished(run)]


def run_of(out: Place, run_id: str) -> Place:
    """Return the directory of a run among results."""
    return out / f"{RUN}{run_id}"


def table_of(run: Place, name: str) -> Place:
    """Return the directory of a run's rows of a table."""
    return run.parent / name / run.name


def files_of(run: Place, name: str) -> list[Place]:
    """Return the files of a table of a finished run, without what other attempts left there.
    Raises OSError, also where none is there of the attempt that became the run."""
    suffix = (run / SUCCESS).read_text().strip()
    files = parquet_files(table_of(run, name))
    if not suffix:  # a local disk, or an older version
        return files
    own = [file for file in files if file.name.endswith(f"{suffix}.parquet")]
    if not own:
        raise FileNotFoundError(f"{table_of(run, name)} has no file of attempt {suffix}")
    return own


def places_of(run: Place) -> list[Place]:
    """Return all directories of a run, that of its row of `runs` first, its own last."""
    return [*(table_of(run, name) for name in reversed(RESULTS)), run]


def read_summary(run: Place) -> dict[str, Any] | None:
    """Return the summary of a run; None when it is missing or damaged."""
    try:
        summary = json.loads((run / "summary.json").read_text())
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) else None


def _differences(known: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    found = []
    for name in sorted(known.keys() | asked.keys()):
        old, new = known.get(name), asked.get(name)
        if old == new:
            continue
        if name == "rules" and isinstance(old, dict) and isinstance(new, dict):
            found += [f"rules.{words}" for words in _differences(old, new)]
        else:
            found.append(f"{LABELS.get(name, name)}: {_shown(old)} there, {_shown(new)} here")
    return found


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


@dataclass(slots=True)
class Attempt:
    """A run under way: where its files go, and how their names end."""

    root: Place
    """Laid out as a directory of results: tables grow below it, and so do the texts."""
    out: Place
    run_id: str
    suffix: str
    """Empty where the whole root is the attempt's own."""
    parts: int = 0
    """Files that each judged table must have; 0: that is not known."""

    @property
    def target(self) -> Place:
        """The run that it becomes."""
        return run_of(self.out, self.run_id)

    def commit(self, texts: Mapping[str, str], row: pa.Table) -> None:
        """Make it a finished run, with these files of TEXTS and this row of `runs/`. Raises
        RunConflict when another process wrote the same run meanwhile."""
        assert tuple(texts) == TEXTS
        if not self.root.is_local:
            self._claim()
        self._check_parts()
        if not self.root.is_local:
            table_of(self.target, RUNS).remove()  # the row of one that was killed at its end
        describe_tables(self.out)
        own = run_of(self.root, self.run_id)
        for name, text in texts.items():
            (own / name).write_text(text)
        with (table_of(own, RUNS) / f"part-00000{self.suffix}.parquet").created() as stream:
            pq.write_table(row, stream, write_page_checksum=True)
        if not self.root.is_local and not self._own_claim.is_file():
            raise busy(self.run_id)  # who began since then took this attempt for a killed one
        (own / SUCCESS).write_text(self.suffix)
        if self.root.is_local:
            for name in RESULTS:  # `runs` comes last of them: who asks it first sees whole tables
                _move_over(table_of(own, name), table_of(self.target, name))
            _move_over(own, self.target)
            return
        with suppress(OSError):  # nobody reads them, and they go later
            for one in self._files():
                if not self._is_own(one):
                    one.remove()

    def claims(self) -> list[Place]:
        """Return by what attempts say that they are about to become the run."""
        return [one.place for one in self.target.listed() if one.place.name.startswith(CLAIM)]

    @property
    def _own_claim(self) -> Place:
        return self.target / f"{CLAIM}{self.suffix}"

    def _claim(self) -> None:
        """Say that this attempt is about to become the run; return when no other one is. Raises
        RunConflict when another is the run, or goes first: of two at once both may see the other,
        or only the later one does, so the lowest waits until the others gave up or are the run."""
        self._own_claim.write_text("")
        end_s = time.monotonic() + CLAIM_S_MAX
        while True:
            others = [claim for claim in self.claims() if claim != self._own_claim]
            # Looked for after the others: who is not among them any more may have left it.
            is_taken = _is_finished(self.target)
            if not is_taken and not others:
                return
            is_lowest = all(self._own_claim.name < claim.name for claim in others)
            if is_taken or not is_lowest or time.monotonic() > end_s:
                self._own_claim.remove()
                raise busy(self.run_id)
            time.sleep(CLAIM_POLL_S)

    def _check_parts(self) -> None:
        """Refuse to become a run of which rows are missing: another process that became it first
        removed them, and its own result was removed after that."""
        for name in RESULTS:
            files = parquet_files(table_of(run_of(self.root, self.run_id), name))
            own = [file for file in files if file.name.endswith(f"{self.suffix}.parquet")]
            if name != RUNS and self.parts and len(own) != self.parts:
                raise RunConflict(
                    f"another process removed files of run {self.run_id}: table {name}/ has "
                    f"{len(own)} of {self.parts}",
                    hint="verify again",
                )

    def abandon(self) -> None:
        """Remove what was written, as far as that goes."""
        with suppress(OSError):
            for one in self._files():
                if self.suffix in one.name:
                    one.remove()

    def _files(self) -> list[Place]:
        """Return all files that lie where those of the run go."""
        listed = [one for place in places_of(self.target) for one in place.listed(recursive=True)]
        return [one.place for one in listed if one.is_file]

    def _is_own(self, place: Place) -> bool:
        if place.name.startswith("."):
            return False  # it grew when its writer was killed
        return self.suffix in place.name or place.name in (SUCCESS, *TEXTS)


def _move_over(source: Place, target: Place) -> None:
    """Give a directory its final place; what a run left there that never ended goes."""
    if source.is_directory():
        target.remove()
        target.parent.create()
        source.move(target)


@contextmanager
def attempt(out: Place, run_id: str) -> Iterator[Attempt]:
    """Yield a run that grows, and remove it if it does not become a finished one.

    Raises RunConflict when another process on this machine writes a run of this id.
    """
    remove_left(out)
    name = uuid.uuid4().hex[:12]  # tasks of one that was killed may write still: into theirs
    if out.is_local:
        with work_directory(Path(out.path), run_id) as path:
            (path / name).mkdir()
            yield Attempt(Place.of(path / name), out, run_id, "")
        return
    grown = Attempt(out, out, run_id, f"-{name}")
    for claim in grown.claims():  # of one that was killed at its end; one that lives is refused
        claim.remove()
    try:
        yield grown
    except BaseException:
        grown.abandon()
        raise


def remove_left(out: Place, now_ms: int = 0) -> None:
    """Remove what killed runs left, whatever their ids: on a local disk what nobody has locked,
    elsewhere what is of no finished attempt and did not grow for a day."""
    if out.is_local:
        if out.is_directory():
            with alone(Path(out.path)):
                _remove_left_here(out)
        return
    oldest_ms = (now_ms or time.time_ns() // 1_000_000) - LEFT_MS
    for run in _unfinished(out):
        places = places_of(run)
        files = [one for place in places for one in place.listed(recursive=True) if one.is_file]
        if max((one.changed_at_ms for one in files), default=oldest_ms) < oldest_ms:
            for place in places:
                place.remove()
    _remove_beside(out, oldest_ms)


def _remove_left_here(out: Place) -> None:
    for path in Path(out.path).glob(f".{RUN}*.partial"):
        remove_unlocked(path)
    for run in _unfinished(out):
        # Who moves its tables here has this directory until the run is there as well.
        if not partial_of(out, run.name).is_directory() and not _is_finished(run):
            for place in places_of(run)[:-1]:
                place.remove()


def _remove_beside(out: Place, oldest_ms: int) -> None:
    """Remove what attempts that were killed left in runs that another one finished."""
    grown: defaultdict[Place, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in (out / FIRST).listed(recursive=True):
        if one.is_file and (found := SUFFIX.search(one.place.name)):
            ages = grown[out / one.place.parent.name]
            ages[found[0]] = max(ages[found[0]], one.changed_at_ms)
    for run, ages in grown.items():
        own = (run / SUCCESS).read_text().strip() if len(ages) > 1 and _is_finished(run) else ""
        old = {suffix for suffix, at_ms in ages.items() if at_ms < oldest_ms} - {own}
        for one in (one for place in places_of(run) for one in place.listed()):
            # An older version did not say which attempt the run is.
            if own and any(suffix in one.place.name for suffix in old):
                one.place.remove()


def _unfinished(out: Place) -> list[Place]:
    """Return runs that are not whole, of which anything is there."""
    listed = [one.place for name in RESULTS for one in (out / name).listed()]
    listed += [one.place for one in out.listed()]
    names = {place.name for place in listed if place.name.startswith(RUN)}
    return [run for run in (out / name for name in sorted(names)) if not _is_finished(run)]


def remove_run(run: Place) -> None:
    """Remove a finished run. Whoever looks sees all of it or nothing, but for who reads it now."""
    if not run.parent.is_local:
        (run / SUCCESS).remove()
        for place in places_of(run):
            place.remove()
        return
    hidden = partial_of(run.parent, f"{run.name}.removed")
    with alone(Path(run.parent.path)):  # until it is gone it is not done again
        run.move(hidden)  # at once; what stays of it if we are killed goes with the next run
        for place in [*places_of(run)[:-1], hidden]:
            place.remove()


def _is_finished(run: Place) -> bool:
    return (run / SUCCESS).is_file()
