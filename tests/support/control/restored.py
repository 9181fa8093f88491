"""A control plane that was restored from a backup, the reports of datanodes, and its recovery."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from merkle.replica import ReplicaState
from scm.administration.restore_recovery import InspectedContainer, RecoveryCall, RecoveryResult
from scm.backup.image import begin_anew
from scm.state.entities import Key, KeyBlock
from tests.support.control.scm_world import ScmWorld, confirm, replica

NODES = ("dn1", "dn2", "dn3")
TAKEN_MS = 1_800_000_000_000


@contextmanager
def restored_world(data: Path) -> Iterator[ScmWorld]:
    """Yield a control plane of three nodes, restored from a backup. In the backup, container 1 is
    closed and container 2 is open."""
    made = ScmWorld(data)
    made.join(*NODES)
    confirm(made, *NODES)
    made.made_closed()
    made.write("writer", "being written", 10)
    made.state.close()
    begin_anew(data / "state", taken_at_ms=TAKEN_MS - 1, now_ms=TAKEN_MS)
    made.start()
    with made.running():
        yield made


def report(
    world: ScmWorld,
    *container_ids: int,
    state: ReplicaState = ReplicaState.CLOSED,
    bcsid: int = 5,
) -> None:
    """Make every node send a full report with replicas of these containers."""
    world.join(*NODES)
    for node in NODES:
        mine = [replica(node, state, container_id=number, bcsid=bcsid) for number in container_ids]
        world.beat(node, *mine, full=True)


def put(name: str, container_id: int, local_id: int) -> Key:
    """Return a key of one block, as the block's metadata describes the key."""
    return Key(name, 10, 1, (KeyBlock(container_id, local_id, 5, 10),))


def looked(container_id: int, *deleted: int, scheme: str = "") -> InspectedContainer:
    """Return the result of examining a container: its scheme and its deleted blocks."""
    return InspectedContainer(container_id, scheme, frozenset(deleted))


def recover(
    world: ScmWorld,
    *found: Key,
    containers: tuple[InspectedContainer, ...] = (),
    is_end: bool = False,
    is_forced: bool = False,
    is_dry_run: bool = False,
    last_local_id: int = 0,
) -> RecoveryResult:
    """Send the found keys and examined containers to the control plane; return its result."""
    call = RecoveryCall(
        containers, found, last_local_id=last_local_id, is_end=is_end, is_forced=is_forced
    )
    return world.control.recovery.recover(call, is_dry_run=is_dry_run)


def codes(made: RecoveryResult) -> list[tuple[str, str]]:
    """Return the name and the result code of each key."""
    return [(one.name, one.code) for one in made.brought]


def names(world: ScmWorld) -> set[str]:
    """Return the names of all keys."""
    return {key.name for key in world.state.keys.values()}
