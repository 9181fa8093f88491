"""An agent that rebuilds a lost index no further than the test allows.

    python -m tests.support.faults.held_rebuild GATE --config FILE

Each commit has BATCH replicas. GATE is a file with the number of commits that this process
may make; the test may raise the number while the agent runs.
"""

import sys
from pathlib import Path
from threading import Event
from typing import Final

from agent.main import main as run_agent
from agent.store import volume_set
from agent.store.recovery import startup_recovery

BATCH: Final = 1
POLL_S: Final = 0.02


def main() -> None:
    """Run the agent with the remaining arguments."""
    gate, load, commits = Path(sys.argv.pop(1)), startup_recovery.load_directories, 0

    def held(*arguments: object) -> None:
        nonlocal commits
        while int(gate.read_text() or 0) <= commits:
            Event().wait(POLL_S)
        commits += 1
        load(*arguments)  # type: ignore[arg-type]

    for module in (startup_recovery, volume_set):
        module.ADOPTED_MAX = BATCH  # type: ignore[attr-defined]
    volume_set.load_directories = held  # type: ignore[assignment]
    run_agent()


if __name__ == "__main__":
    main()
