"""Snapshots of a control plane whose clock was wrong once, or one of whose datanodes is."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from merkle.replica import ID_MAX
from scm.api.call_values import Heartbeat
from scm.state.entities import CommandKind
from spark_verify.pipeline import VerifyRequest, verify
from suture.runtime.exit_codes import ExitCode
from tests.support.control.scm_world import ScmWorld, confirm, volume

TEN_YEARS_S = 10 * 365 * 86_400
NODES = ("dn1", "dn2", "dn3")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Three nodes."""
    with ScmWorld(tmp_path / "scm").running() as made:
        made.join(*NODES)
        yield made


def verified(world: ScmWorld, out: Path) -> int:
    """Export a snapshot and verify it; return what `suture-verify` would exit with."""
    snapshot = world.control.queries.export_snapshot().place
    summary = verify(VerifyRequest(snapshot, out)).summary
    assert (1, 3) == (summary["containers"], summary["rows"]["replicas"])
    code: int = summary["exit_code"]
    return code


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_clock_that_was_ahead_once_ends_no_verification(world: ScmWorld, tmp_path: Path) -> None:
    """A container closed under the wrong clock keeps that time, and so does a datanode last
    heard then. Every snapshot would be refused for years.
    """
    world.clock.set_wall_s(TEN_YEARS_S)
    world.made_closed()
    for known in list(world.state.replicas.values()):
        told = replace(known, reported_at_ms=world.clock.now_ms())
        world.beat(known.datanode_id, told, full=True)
    world.clock.set_wall_s(-TEN_YEARS_S)

    assert verified(world, tmp_path / "out") == ExitCode.OK


def full_queues(world: ScmWorld) -> None:
    world.queues["dn3"] = ((CommandKind.REPLICATE, 2**32 - 1),)
    world.call("dn3")


def large_disks(world: ScmWorld) -> None:
    disks = (volume(capacity_bytes=ID_MAX, available_bytes=ID_MAX),) * 2
    world.control.datanodes.heartbeat(Heartbeat("dn1", 1, disks, (), (), (), None, 0))


def tree_with(world: ScmWorld, node: str, **fields: Any) -> None:
    """Report a tree with such numbers."""
    known = world.state.replicas.get((1, node))
    assert known is not None
    assert known.tree is not None
    world.beat(node, replace(known, tree=replace(known.tree, **fields)))


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_numbers_of_single_datanodes_end_no_verification(world: ScmWorld, tmp_path: Path) -> None:
    """A flipped bit or a defect gave a value that does not fit into a snapshot, and the snapshot
    of the whole cluster was refused or could not be written.
    """
    world.made_closed()
    confirm(world, *NODES)
    tree_with(world, "dn1", generation=2**63)
    tree_with(world, "dn2", tombstone_count=2**31)
    full_queues(world)
    large_disks(world)

    assert verified(world, tmp_path / "out") == ExitCode.OK
