"""Runs one benchmark in a separate process: `python -m bench.child MODULE RESULT`.

A separate process does not inherit another benchmark's heap, caches or threads.
"""

import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

from bench.measure import Measure


def main(module_name: str, result: Path) -> None:
    """Run `measures()` of the module and write its result."""
    measures: list[Measure] = importlib.import_module(f"bench.{module_name}").measures()
    result.write_text(json.dumps([asdict(measure) for measure in measures]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
