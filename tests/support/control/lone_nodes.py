"""The control plane's node manager without the rest of the control plane."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import pytest

from scm.cluster.nodes import NodeManager, Registration
from scm.state.clock import ScmClock
from scm.state.database import StateDatabase
from scm.state.entities import Node, NodeHealthState
from scm.state.options import ScmOptions
from suture.errors import UnavailableError
from tests.support.clock import FakeClock
from tests.support.control.scm_world import MAP_BYTES, volume
from tests.support.control.unwritable import unwritable
from tests.support.heard import logged

OPTIONS: Final = ScmOptions(heartbeat_interval_ms=500, stale_after_ms=10_000, dead_after_ms=60_000)


def registration(datanode_id: str, *, boot_id: int = 1, rack: str = "/r1") -> Registration:
    """Return the registration of a new datanode."""
    return Registration(datanode_id, f"{datanode_id}:1", rack, "0.1", "", boot_id, (volume(),))


@dataclass
class Cluster:
    """A node manager on a real state database. Its wall clock starts at 1,000,000 ms."""

    state: StateDatabase
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        """Create the node manager."""
        self.restart()

    @classmethod
    @contextmanager
    def opened(cls, path: Path) -> Iterator[Self]:
        """Yield a node manager on a new state database in `path`."""
        state = StateDatabase.open(path, map_bytes=MAP_BYTES)
        try:
            yield cls(state)
        finally:
            state.close()

    def restart(self) -> None:
        """Create the node manager again, with only the state that is on disk."""
        clock = ScmClock(self.clock.now_ms, self.clock.monotonic_s)
        self.nodes = NodeManager(self.state, clock, OPTIONS)

    def register(self, made: Registration) -> bool:
        """Register a datanode, and commit the change; return the result of the node manager."""
        with self.state.change() as change:
            return self.nodes.register(change, made)

    def join(self, *datanode_ids: str) -> None:
        """Register datanodes with default properties."""
        for datanode_id in datanode_ids:
            self.register(registration(datanode_id))

    def set_row(self, edit: Callable[[Node], Node], datanode_id: str = "dn1") -> None:
        """Replace a datanode's row by the result of `edit`."""
        with self.state.change() as change:
            change.put(self.state.nodes, edit(self.row(datanode_id)))

    def row(self, datanode_id: str = "dn1") -> Node:
        """Return a datanode's row. Fail if there is none."""
        node = self.state.nodes.get(datanode_id)
        assert node is not None
        return node

    def note(self, count_max: int = 1_000) -> list[str]:
        """Call `note_health` for at most `count_max` changes; return its result."""
        with self.state.change() as change:
            return self.nodes.note_health(change, count_max=count_max)

    def note_in_vain(self, count_max: int = 1_000) -> list[str]:
        """Call `note_health` in a change that cannot be committed; return the logged events."""
        with logged() as logs, unwritable(), pytest.raises(UnavailableError):
            self.note(count_max)
        return [line["event"] for line in logs]

    def silence(self, health: NodeHealthState) -> None:
        """Move the clock forward until a node whose last heartbeat is now has this health."""
        self.clock.advance_s(
            {NodeHealthState.HEALTHY: 0, NodeHealthState.STALE: 11, NodeHealthState.DEAD: 61}[
                health
            ]
        )
