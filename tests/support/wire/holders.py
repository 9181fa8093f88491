"""Finds the tests that fail if a field of the wire contract is removed, and verifies them.

    python -m tests.support.wire.holders find SEEN              find tests for fields without one
    python -m tests.support.wire.holders try [SIDE:FIELD...]    check that each field's test fails

`holders.tsv` names two tests for each field: one that fails if the product does not send the field,
and one that fails if the product does not receive it. SEEN is the output of `recording`. It has the
tests in which a field has a value; only these are tried, the quick ones first.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Final

from tests.support.wire.lost_field import ASKED, DONE, LOST, READ, ROOT, SENT, all_fields, times

TABLE: Final = Path(__file__).with_name("holders.tsv")
ROUNDS: Final = 10
PROCESSES: Final = 2
START_S: Final = 300.0
TRIAL_S: Final = 10.0


def table() -> dict[str, str]:
    """Return the test that depends on each field, by side and field."""
    held = {}
    for line in TABLE.read_text().splitlines() if TABLE.exists() else ():
        name, sent, read = line.split("\t")
        held[f"{SENT}:{name}"], held[f"{READ}:{name}"] = sent, read
    return held


def write_table(held: Mapping[str, str]) -> None:
    """Write the table, in the order of the contract."""
    rows = ((name, *(held.get(key, "") for key in sides([name]))) for name in all_fields())
    TABLE.write_text("".join("\t".join(row) + "\n" for row in rows))


def sides(names: Iterable[str]) -> Iterator[str]:
    """Yield `sent:FIELD` and `read:FIELD` for each field."""
    for name in names:
        yield from (f"{SENT}:{name}", f"{READ}:{name}")


def tried(trials: Iterable[tuple[str, str]]) -> dict[str, bool]:
    """Run each test with its field removed; return whether the test failed, by side and field.
    Fields that could not be tried are left out."""
    groups = [list(group) for _, group in groupby(sorted(trials, key=_file), key=_file)]
    groups.sort(key=len, reverse=True)
    with ThreadPoolExecutor(PROCESSES) as pool:
        return {key: is_red for results in pool.map(_tried, groups) for key, is_red in results}


def _file(trial: tuple[str, str]) -> str:
    return trial[1].partition("::")[0]


def _tried(trials: Sequence[tuple[str, str]]) -> list[tuple[str, bool]]:
    """Run the tests of one file with their fields removed, in a separate process; return whether
    each failed."""
    words = ["-q", "-p", "tests.support.wire.trying", "-p", "no:cacheprovider"]
    with tempfile.TemporaryDirectory() as made:
        lost, asked, done = (Path(made, name) for name in ("lost", "asked", "done"))
        lost.write_text("none")
        asked.write_text("".join(f"{key}\t{test}\n" for key, test in trials))
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pytest",
                    *words,
                    *dict.fromkeys(test for _, test in trials),
                ],
                cwd=ROOT,
                env=os.environ | {LOST: str(lost), ASKED: str(asked), DONE: str(done)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=START_S + TRIAL_S * len(trials),
            )
        lines = done.read_text().splitlines() if done.exists() else []
    return [(key, result == "red") for key, _, result in (line.split("\t") for line in lines)]


def candidates(seen: Path) -> dict[str, list[str]]:
    """Return the tests in which a field has a value, by side and field, the quick tests first."""
    known = (line.split("\t") for line in times(seen).read_text().splitlines())
    seconds = {test: float(duration) for test, duration in known}
    carrying: dict[str, set[str]] = {}
    for line in seen.read_text().splitlines():
        key, test = line.split("\t")
        if test in seconds:
            carrying.setdefault(key, set()).add(test)
    return {key: sorted(tests, key=seconds.__getitem__) for key, tests in carrying.items()}


def find(seen: Path) -> None:
    """Find tests for the fields that have none, and write the table. In each round, try the next
    candidate of each remaining field."""
    carrying = candidates(seen)
    held = {key: test for key, test in table().items() if test}
    for place in range(ROUNDS):
        trials = {
            key: carrying[key][place]
            for key in sides(all_fields())
            if key not in held and len(carrying.get(key, ())) > place
        }
        red = {key for key, is_red in tried(trials.items()).items() if is_red}
        held |= {key: trials[key] for key in red}
        write_table(held)
        sys.stdout.write(f"round {place + 1}: {len(red)} of {len(trials)} are held\n")
        sys.stdout.flush()


def main() -> int:
    """Run the command in the first argument; return the exit code."""
    what, *words = sys.argv[1:]
    if what == "find":
        find(Path(words[0]))
        return 0
    held = table()
    wanted = {key: held[key] for key in words or held if held[key]}
    red = tried(wanted.items())
    for key in wanted.keys() - red.keys():
        sys.stdout.write(f"{key} has no result with {held[key]}\n")
    for key in (key for key, is_red in red.items() if not is_red):
        sys.stdout.write(f"{key} is not held by {held[key]}\n")
    return 0 if wanted.keys() == red.keys() and all(red.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
