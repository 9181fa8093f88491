"""One benchmark in a process of its own: `python -m bench.child MODULE RESULT`.

A process of its own, so that no benchmark inherits another one's heap, caches or threads.
"""

import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

from bench.measure import Measure


def main(module_name: str, result: Path) -> None:
    """Run `measures()` of the module and write what it returned."""
    measures: list[Measure] = importlib.import_module(f"bench.{module_name}").measures()
    result.write_text(json.dumps([asdict(measure) for measure in measures]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
