"""What names a run, when a finished one is returned again, and who may write one.

    out/run_id=<id>/             a finished run, if it has a _SUCCESS
    out/.run_id=<id>.partial/    on a local disk, a run that grows, locked by the process that
                                 writes it; it is renamed when it is whole, with its _SUCCESS

Elsewhere nothing can be renamed. There a run grows where it will be, in files that bear the name
of their attempt. When all are there, what other attempts left is removed, and _SUCCESS is written
last.

A run answers one question: this snapshot, these nodes, these rules, this version of the job. Its
answer is returned again to that question only. To any other it would be a wrong answer that looks
right: containers that were never looked at would be called clean.
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from health.rules import Rules
from spark_verify.errors import RunConflict
from spark_verify.places import Place
from spark_verify.rows import RESULT_VERSION, SAMPLE_MAX
from spark_verify.snapshot.manifest import Manifest

SUCCESS: Final = "_SUCCESS"
TEXTS: Final = ("summary.json", "report.html", "manifest.json")
"""Files of a run beside its tables."""

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

    Raises RunConflict when it would name no directory.
    """
    run_id = given or manifest.snapshot_id
    if changed_nodes and not given:
        named = "\n".join(sorted(set(changed_nodes)))
        run_id += f"-changed-{zlib.crc32(named.encode()):08x}"
    if not run_id.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise RunConflict(f"run id {run_id!r} is no name for a directory")
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
    runs = [one.place for one in out.listed() if one.place.name.startswith("run_id=")]
    return [run for run in runs if (run / SUCCESS).is_file()]


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

    work: Place
    target: Place
    suffix: str
    """Empty where the whole directory is the attempt's own."""

    def commit(self, texts: Mapping[str, str]) -> None:
        """Make it a finished run, with these files of TEXTS. Raises RunConflict when another
        process wrote the same run meanwhile."""
        assert tuple(texts) == TEXTS
        if self.work.is_local:
            for name, text in {**texts, SUCCESS: ""}.items():
                (self.work / name).write_text(text)
            self.target.remove()  # left by a run that never got its _SUCCESS
            self.work.move(self.target)
            return
        if (self.target / SUCCESS).is_file():
            raise _busy(self.target.name)
        for one in self.target.listed(recursive=True):
            if one.is_file and not self._is_own(one.place):
                one.place.remove()  # left by a run that was killed
        for name, text in {**texts, SUCCESS: ""}.items():
            (self.target / name).write_text(text)

    def abandon(self) -> None:
        """Remove what was written, as far as that goes."""
        with suppress(OSError):
            for one in self.target.listed(recursive=True):
                if one.is_file and self.suffix in one.place.name:
                    one.place.remove()

    def _is_own(self, place: Place) -> bool:
        return self.suffix in place.name or place.name in (SUCCESS, *TEXTS)


@contextmanager
def attempt(out: Place, run_id: str) -> Iterator[Attempt]:
    """Yield a run that grows, and remove it if it does not become a finished one.

    Raises RunConflict when another process on this machine writes a run of this id.
    """
    target = out / f"run_id={run_id}"
    remove_left(out)
    if out.is_local:
        with work_directory(Path(out.path), run_id) as path:
            yield Attempt(Place.of(path), target, "")
        return
    grown = Attempt(target, target, f"-{uuid.uuid4().hex[:12]}")
    try:
        yield grown
    except BaseException:
        grown.abandon()
        raise


def remove_left(out: Place, now_ms: int = 0) -> None:
    """Remove what killed runs left, whatever their ids: on a local disk what nobody has locked,
    elsewhere what has no _SUCCESS and did not grow for a day."""
    if out.is_local:
        for path in Path(out.path).glob(".run_id=*.partial"):
            _remove_unlocked(path)
        return
    oldest_ms = (now_ms or time.time_ns() // 1_000_000) - LEFT_MS
    for one in out.listed():
        if not one.place.name.startswith("run_id=") or (one.place / SUCCESS).is_file():
            continue
        grown = [file.changed_at_ms for file in one.place.listed(recursive=True) if file.is_file]
        if max(grown, default=oldest_ms) < oldest_ms:
            one.place.remove()


def _remove_unlocked(path: Path) -> None:
    with suppress(FileNotFoundError):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass  # it grows
        finally:
            os.close(handle)


@contextmanager
def work_directory(out: Path, run_id: str) -> Iterator[Path]:
    """Give this process alone the empty directory in which a run grows; hidden, so that nobody
    reads half a run. What is still there at the end is removed.

    Raises RunConflict when another process writes a run of this id.
    """
    path = out / f".run_id={run_id}.partial"
    path.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(handle, path, run_id)
        try:
            for left in path.iterdir():  # by a run that was killed
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            yield path
        finally:
            if _is_at(handle, path):  # else it was renamed, and may be another's by now
                shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(handle)


def _lock(handle: int, path: Path, run_id: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _busy(run_id) from None
    if not _is_at(handle, path):  # renamed by the other one meanwhile: it has just finished
        raise _busy(run_id)


def _busy(run_id: str) -> RunConflict:
    return RunConflict(
        f"another process writes run {run_id} at this moment",
        hint="wait for it, or choose another --run-id",
    )


def _is_at(handle: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False
