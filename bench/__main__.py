"""Run the benchmarks: `python -m bench [NAME ...]`, or `--list` to see their names.

A benchmark is a module `bench/<folder>/bench_<name>.py` with `measures() -> list[Measure]`. Prints
one line per measure and writes the same to bench/out/results.json. Exit code 1 if a bound does not
hold or a benchmark fails, 2 if a name is unknown.

    scans         trees, scans, and what they cost the clients beside them
    clients       put, get, and what calls cost
    repairs       copies, reconciles, erasure coding
    control       the control plane: its judge, its reports, its page
    reliability   faults, lies, outages and restores: what is kept through them
    verification  the job with Spark
    ozone         volumes of Apache Ozone
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from bench.measure import Measure

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "out" / "results.json"
PREFIX = "bench_"
BENCH_TIMEOUT_S = int(os.environ.get("BENCH_TIMEOUT_S", "1200"))
"""Time limit of one benchmark, in seconds, in case it hangs. A large benchmark may need more."""
COLUMNS = "{name:<46} {value:>14} {unit:<12} {compared_with:<34} {bound:<18} {outcome}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="for instance: tree")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    options = parser.parse_args(arguments)
    known = names()
    unknown = sorted({plain(name) for name in options.names} - set(known))
    if unknown:
        print(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(known))
        return 0
    return run([plain(name) for name in options.names] or known)


def names() -> list[str]:
    """Return the names of all benchmarks, in order."""
    return sorted(path.stem.removeprefix(PREFIX) for path in FOLDER.glob(f"*/{PREFIX}*.py"))


def plain(name: str) -> str:
    """Return the plain name of a benchmark: `tree` for `tree`, `bench_tree` and `bench_tree.py`."""
    return name.removeprefix(PREFIX).removesuffix(".py")


def run(chosen: Sequence[str]) -> int:
    """Run the benchmarks, print their measures as they come, and write all measures to RESULTS;
    return the exit code."""
    taken: list[Measure] = []
    failed: list[str] = []
    header = ("name", "value", "unit", "compared_with", "bound", "outcome")
    print(COLUMNS.format(**{word: word.replace("_", " ") for word in header}))
    for name in chosen:
        try:
            for measure in measures_of(name):
                taken.append(measure)
                print(line(measure), flush=True)
        except subprocess.SubprocessError as error:
            failed.append(name)
            print(f"{name}: failed: {error}", file=sys.stderr)
    write_results(taken, failed)
    short = sum(measure.holds is False for measure in taken)
    print(f"{len(taken)} measures, {short} short, {len(failed)} benchmarks failed; {RESULTS}")
    return 1 if short or failed else 0


def measures_of(name: str) -> Iterator[Measure]:
    """Run one benchmark in a separate process."""
    (path,) = FOLDER.glob(f"*/{PREFIX}{name}.py")
    with tempfile.TemporaryDirectory(prefix="suture-bench-") as scratch:
        result = Path(scratch) / "measures.json"
        subprocess.run(
            [sys.executable, "-m", "bench.child", f"{path.parent.name}.{path.stem}", str(result)],
            check=True,
            cwd=FOLDER.parent,
            timeout=BENCH_TIMEOUT_S,
        )
        for fields in json.loads(result.read_text()):
            yield Measure(**fields)


def line(measure: Measure) -> str:
    """Return the measure as one printed line."""
    return COLUMNS.format(
        name=measure.name,
        value=f"{measure.value:,.4g}" if abs(measure.value) < 1_000 else f"{measure.value:,.0f}",
        unit=measure.unit,
        compared_with=measure.compared_with or "-",
        bound=measure.bound or "-",
        outcome=measure.outcome,
    )


def write_results(taken: Sequence[Measure], failed: Sequence[str]) -> None:
    """Write the measures to RESULTS, together with facts about the machine, because the numbers
    mean nothing without the machine.
    """
    RESULTS.parent.mkdir(exist_ok=True)
    document = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(),
            "processor": platform.machine(),
            "system": platform.platform(),
            "python": platform.python_version(),
        },
        "failed": list(failed),
        "measures": [{**asdict(measure), "outcome": measure.outcome} for measure in taken],
    }
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
