"""`python -m bench` says which bounds hold, and its exit code says whether all do."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.measure import at_least, at_most, interleaved_medians

ROOT = Path(__file__).resolve().parents[2]
HARNESS = ("__main__.py", "child.py", "measure.py")

FINE = """
from bench.measure import Measure, at_least
def measures():
    return [at_least("speed", 12.5, "x", 8, compared_with="plain"), Measure("size", 40, "bytes")]
"""
SHORT = """
from bench.measure import at_most
def measures():
    return [at_most("latency", 5, "ms", 3)]
"""
BROKEN = """
def measures():
    raise ValueError("no disk")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tree with the real harness and three benchmarks: one fine, one short, one broken."""
    (tmp_path / "bench" / "some").mkdir(parents=True)
    for name in HARNESS:
        shutil.copy(ROOT / "bench" / name, tmp_path / "bench")
    for name, source in (("fine", FINE), ("short", SHORT), ("broken", BROKEN)):
        (tmp_path / "bench" / "some" / f"bench_{name}.py").write_text(source)
    return tmp_path


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the harness as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_passed_bounds_are_printed_and_written(folder: Path) -> None:
    """Each measure is one line, the same in results.json, and the exit code is 0 if no bound
    fails.
    """
    ran = bench(folder, "fine")

    lines = ran.stdout.splitlines()
    results = json.loads((folder / "bench" / "out" / "results.json").read_text())
    assert 0 == ran.returncode, ran.stderr
    assert ["speed", "12.5", "x", "plain", "at", "least", "8", "holds"] == lines[1].split()
    assert ["size", "40", "bytes", "-", "-", "-"] == lines[2].split()
    assert ["holds", "-"] == [measure["outcome"] for measure in results["measures"]]
    assert results["machine"]["cores"] >= 1


@pytest.mark.parametrize("name", ["short", "broken"])
def test_failed_bound_or_broken_benchmark_fails_the_run(name: str, folder: Path) -> None:
    """A failed bound and a benchmark that raises both end with exit code 1, after the others
    ran.
    """
    ran = bench(folder, name, "bench_fine")

    results = json.loads((folder / "bench" / "out" / "results.json").read_text())
    assert 1 == ran.returncode
    assert "speed" in ran.stdout
    assert (["broken"] if name == "broken" else []) == results["failed"]


def test_an_unknown_name_is_refused(folder: Path) -> None:
    """A misspelt name runs nothing, and the error lists the known names."""
    ran = bench(folder, "fien")

    assert 2 == ran.returncode
    assert "unknown: fien; known: broken, fine, short" == ran.stderr.strip()
    assert ["broken", "fine", "short"] == bench(folder, "--list").stdout.split()


def test_bounds_include_their_limit() -> None:
    """
    "At least 8" is kept by 8, and so is "at most 8".
    """
    assert at_least("a", 8, "x", 8).holds
    assert at_most("a", 8, "x", 8).holds
    assert not at_least("a", 7.9, "x", 8).holds
    assert not at_most("a", 8.1, "x", 8).holds


def test_two_are_measured_in_turns() -> None:
    """
    Each runs once a round, and they take turns in going first.
    """
    calls: list[str] = []

    first_s, second_s = interleaved_medians(
        lambda: calls.append("a"), lambda: calls.append("b"), rounds=3
    )

    assert ["a", "b", "b", "a", "a", "b"] == calls
    assert first_s >= 0
    assert second_s >= 0


def test_every_listed_bench_has_measures() -> None:
    """
    A module beside the benches that has their prefix would be run, and fail.
    """
    files = sorted((ROOT / "bench").glob("*/bench_*.py"))

    assert 20 < len(files)
    assert [] == [path.name for path in files if "def measures(" not in path.read_text()]
