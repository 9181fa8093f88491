"""Files of deleted replicas that could not be removed when they were deleted."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.host.housekeeper import Housekeeper
from agent.store.operations import deleting
from agent.store.operations.deleting import GRAVES_FAILED_MAX
from merkle.replica import ContainerId
from tests.support.clock import FakeClock
from tests.support.storage.stored_replica import StoredReplica

COUNT = 5


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """A store with containers of which the files could not be removed, and nothing is wrong now."""
    made = StoredReplica(tmp_path)
    for number in range(1, COUNT + 1):
        made.store.create_container(ContainerId(number))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(deleting, "remove_tree", failing_once_it_is_there)
            made.store.delete_container(ContainerId(number), force=True)
    assert COUNT == len(graves(made))
    yield made
    made.close()


def failing_once_it_is_there(path: Path) -> None:
    """Fail to remove a directory."""
    if path.exists():
        raise OSError(errno.EIO, "Input/output error")


def graves(replica: StoredReplica) -> list[Path]:
    """Return what deletes have left."""
    [volume] = replica.store.volume_set.working
    return sorted(volume.layout.deleting.iterdir())


def test_an_error_that_has_passed_costs_no_room(replica: StoredReplica) -> None:
    """Agents run for months, and the removal would otherwise be retried at the next start only."""
    keeper = Housekeeper(replica.store, 1.0, clock=FakeClock())

    keeper.step()
    keeper.step()

    assert [] == graves(replica)


def test_a_delete_that_is_under_way_is_left_to_it(replica: StoredReplica) -> None:
    """New directories since the last check may belong to a running delete. Two removals of one
    directory would both fail.
    """
    keeper = Housekeeper(replica.store, 1.0, clock=FakeClock())
    keeper.step()
    [volume] = replica.store.volume_set.working
    fresh = volume.layout.deleting / "77"
    fresh.mkdir()

    keeper.step()

    assert [fresh] == graves(replica)


def test_a_failing_disk_is_not_asked_long_and_every_one_has_its_turn(
    replica: StoredReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Each try may take half a minute there; and one that never goes must not keep the others.
    """
    keeper = Housekeeper(replica.store, 1.0, clock=FakeClock())
    keeper.step()
    asked: list[str] = []
    remove = deleting.remove

    def failing(path: Path) -> None:
        asked.append(path.name)
        if path.name != "5":
            raise OSError(errno.EIO, "Input/output error")
        remove(path)

    monkeypatch.setattr(deleting, "remove", failing)
    keeper.step()
    assert GRAVES_FAILED_MAX == len(asked)
    assert COUNT == len(graves(replica))

    keeper.step()

    assert {"1", "2", "3", "4", "5"} == set(asked)
    assert "5" not in [path.name for path in graves(replica)]
