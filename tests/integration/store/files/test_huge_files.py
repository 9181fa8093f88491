"""A file that claims a tebibyte and holds nothing is never read into memory."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.store.files.layout import VolumeLayout
from agent.store.recovery.fsck import fsck
from agent.store.replica.packs import read_table
from agent.store.replica.quick_check import quick_check
from agent.store.volumes.op_state_file import NodeState, newest_state, state_path
from merkle.replica import ReplicaState
from scanner.finding import DamageFault
from suture.config.bounded_read import SETTINGS_BYTES_MAX, read_file_bounded
from suture.runtime.durable import TooLarge, read_file
from tests.support.storage.stored_replica import CLUSTER, CONTAINER, StoredReplica

HUGE_BYTES = 1024**4


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """A closed replica."""
    made = StoredReplica(tmp_path / "volume")
    made.create()
    yield made
    made.close()


def grow(path: Path) -> None:
    """Let a file claim more than any memory has."""
    os.truncate(path, HUGE_BYTES)


@pytest.mark.parametrize(
    ("name", "fault", "state"),
    [
        ("1.container", DamageFault.DESCRIPTOR_DAMAGED, ReplicaState.UNHEALTHY),
        ("1.tree", DamageFault.TREE_DAMAGED, ReplicaState.CLOSED),
    ],
)
def test_a_huge_file_of_a_replica_is_damaged(
    replica: StoredReplica, name: str, fault: DamageFault, state: ReplicaState
) -> None:
    """
    The scan, the quick look and fsck say so with its size; the tree is served as the index has it.
    """
    paths = replica.store.paths(CONTAINER)
    root = replica.store.view(CONTAINER).tree().root
    grow(paths.descriptor.parent / name)

    assert root == replica.store.view(CONTAINER).tree().root
    if fault is DamageFault.DESCRIPTOR_DAMAGED:
        [seen] = quick_check(paths, CONTAINER, has_tree=True)
        assert str(HUGE_BYTES) in seen
    replica.store.close()
    problems = fsck(replica.path).problems
    replica.reopen()
    report = replica.scan()

    assert [fault.value] == [problem.kind for problem in problems]
    assert str(HUGE_BYTES) in problems[0].message
    [finding] = report.findings
    assert (fault, True) == (finding.fault, str(HUGE_BYTES) in finding.evidence)
    assert state is report.commit.state_after


def test_a_replica_without_a_row_is_not_loaded_from_a_huge_descriptor(
    replica: StoredReplica,
) -> None:
    """The replica is reported as unloadable."""
    grow(replica.store.paths(CONTAINER).descriptor)
    replica.store.volume_set.places[CONTAINER].index.write(
        lambda rows: rows.delete_container(CONTAINER)
    )
    replica.store.close()

    replica.reopen()

    [left] = replica.store.unloadable()
    assert str(HUGE_BYTES) in left.reason


def test_a_huge_node_state_is_none(replica: StoredReplica) -> None:
    """The huge state is treated as damaged, and the control plane sends the state again."""
    replica.store.volume_set.set_node_state("DECOMMISSIONING", 0)
    layout = VolumeLayout(replica.path, CLUSTER)
    grow(state_path(layout))

    assert NodeState() == newest_state([layout])


def test_a_huge_pack_has_no_table(replica: StoredReplica) -> None:
    """A file that ends in a hole has no footer."""
    paths = replica.store.paths(CONTAINER)
    paths.pack.write_bytes(b"x")
    grow(paths.pack)

    with pytest.raises(Exception, match="footer of the pack"):
        read_table(paths)


def test_the_bound_is_that_of_the_file(tmp_path: Path) -> None:
    """
    At it a file is read, beyond it nothing is.
    """
    path = tmp_path / "file"
    path.write_bytes(b"12345")

    assert read_file(path, bytes_max=5) == b"12345"
    with pytest.raises(TooLarge, match="5 bytes, 4 are possible"):
        read_file(path, bytes_max=4)
    assert read_file_bounded(path, bytes_max=5) == b"12345"
    grow(path)
    with pytest.raises(OSError, match=f"more than {SETTINGS_BYTES_MAX}"):
        read_file_bounded(path, bytes_max=SETTINGS_BYTES_MAX)
