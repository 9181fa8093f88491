"""What names a run, when a finished one is returned again, and who may write one.

    out/run_id=<id>/             a finished run; the last file written is _SUCCESS
    out/.run_id=<id>.partial/    a run that grows, locked by the process that writes it

A run answers one question: this snapshot, these nodes, these rules, this version of the job. Its
answer is returned again to that question only. To any other it would be a wrong answer that looks
right: containers that were never looked at would be called clean.
"""

import fcntl
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from health.rules import Rules
from spark_verify.errors import RunConflict
from spark_verify.rows import RESULT_VERSION
from spark_verify.snapshot.manifest import Manifest

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
    *("health", "health.plan"),
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
    manifest: Manifest, *, changed_nodes: Sequence[str], rules: Rules, reporting_min_percent: int
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
        "reporting_min_percent": reporting_min_percent,
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


def finished(target: Path, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the summary of the finished run at `target`; None when there is none.

    Raises RunConflict when it was made from anything else than `inputs`, or does not say from what.
    """
    if not (target / "_SUCCESS").is_file():
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


def read_summary(run: Path) -> dict[str, Any] | None:
    """Return the summary of a run; None when it is missing or damaged."""
    try:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
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
    busy = RunConflict(
        f"another process writes run {run_id} at this moment",
        hint="wait for it, or choose another --run-id",
    )
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise busy from None
    if not _is_at(handle, path):  # renamed by the other one meanwhile: it has just finished
        raise busy


def _is_at(handle: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False
