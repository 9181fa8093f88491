"""What waits to be repaired: the order, and who sleeps until a datanode has room."""

import pytest

from scm.replication.processors.repair_queue import SLACK, ReplicationQueue


class Datanodes:
    """Which have room, and how often they were asked."""

    def __init__(self, *free: str) -> None:
        self.free = set(free)
        self.asked = 0

    def has_room(self, datanode_id: str) -> bool:
        """Whether one may be given more."""
        self.asked += 1
        return datanode_id in self.free


@pytest.fixture
def datanodes() -> Datanodes:
    """All busy."""
    return Datanodes()


@pytest.fixture
def queue(datanodes: Datanodes) -> ReplicationQueue:
    """Three containers: 1 has time, 2 and 3 have not."""
    made = ReplicationQueue(datanodes.has_room)
    for container_id, weight in ((1, 5), (3, 0), (2, 0)):
        made.put(container_id, weight)
    return made


def test_the_most_urgent_comes_first(queue: ReplicationQueue) -> None:
    """Equal ones are ordered by id, and no more than requested are returned."""
    assert [2, 3] == queue.choose(2)
    assert [2, 3, 1] == queue.choose(9)


def test_whoever_was_tried_is_less_urgent(queue: ReplicationQueue) -> None:
    """By one each time: it does not stand in the way of what can be done."""
    queue.choose(9)
    queue.put_back(2, weight=0, tries=2)

    assert [3, 2, 1] == queue.choose(9)


def test_repair_that_was_chosen_and_not_tried_is_chosen_again(queue: ReplicationQueue) -> None:
    """A turn may end early."""
    queue.choose(1)

    assert [2, 3, 1] == queue.choose(9)


def test_a_look_changes_the_weight_and_not_the_tries(queue: ReplicationQueue) -> None:
    """The weight also changes for an entry that is in its turn."""
    queue.choose(9)
    queue.put_back(1, weight=5, tries=3)
    queue.put(1, -4)

    assert (-4, 3) == queue.found[1]
    assert [1, 2, 3] == queue.choose(9)


def test_discarded_repair_is_not_chosen(queue: ReplicationQueue) -> None:
    """The discarded repair may wait or sleep. No other one is removed."""
    queue.park_until_room(3, ["dn1"])
    queue.discard([2, 3, 99])

    assert [1] == queue.choose(9)
    assert 1 == len(queue)
    assert [False, False] == [number in queue for number in (2, 3)]


def test_sleeping_repair_is_chosen_when_a_datanode_has_room(
    queue: ReplicationQueue, datanodes: Datanodes
) -> None:
    """The repair keeps its place."""
    queue.park_until_room(2, ["dn1", "dn2"])
    queue.park_until_room(3, ["dn1"])
    asleep = queue.choose(9)
    datanodes.free = {"dn2"}

    assert [1] == asleep
    assert [2, 1] == queue.choose(9)


def test_repair_that_slept_for_several_datanodes_is_chosen_once(
    queue: ReplicationQueue, datanodes: Datanodes
) -> None:
    """The repair sleeps again until one has room if all are busy."""
    queue.park_until_room(2, ["dn1", "dn2"])
    datanodes.free = {"dn1", "dn2"}
    woken = queue.choose(9)
    datanodes.free = set()
    again = queue.sleeps_again(2)

    assert [2, 3, 1] == woken
    assert again
    assert [3, 1] == queue.choose(9)


def test_resting_repairs_are_chosen_when_woken(queue: ReplicationQueue) -> None:
    """The repairs keep their places. A repair that sleeps for a datanode keeps sleeping."""
    queue.park(2)
    queue.park(3)
    queue.park_until_room(3, ["dn1"])
    resting, is_anyone = queue.choose(9), queue.has_resting
    queue.wake_resting()

    assert ([1], True) == (resting, is_anyone)
    assert [2, 1] == queue.choose(9)
    assert not queue.has_resting


def test_resting_repair_is_chosen_after_a_new_look(queue: ReplicationQueue) -> None:
    """The container may have other replicas now. A discarded repair does not rest."""
    queue.park(2)
    queue.park(3)
    queue.put(2, 0)
    queue.discard([3])

    assert [2, 1] == queue.choose(9)
    assert not queue.has_resting


def test_repair_that_never_slept_or_has_room_is_tried(
    queue: ReplicationQueue, datanodes: Datanodes
) -> None:
    """Only a repair whose datanodes are all busy sleeps again."""
    queue.park_until_room(2, ["dn1"])
    datanodes.free = {"dn1"}

    assert not queue.sleeps_again(2)
    assert not queue.sleeps_again(3)


def test_a_look_wakes_a_sleeper(queue: ReplicationQueue, datanodes: Datanodes) -> None:
    """Its replicas may be on other datanodes now."""
    queue.park_until_room(2, ["dn1"])
    queue.put(2, 0)

    assert [2, 3, 1] == queue.choose(9)
    assert not queue.sleeps_again(2)
    assert 0 == datanodes.asked


def test_a_turn_asks_for_datanodes_and_not_for_containers(datanodes: Datanodes) -> None:
    """A turn counts datanodes, however many containers wait for the same one."""
    queue = ReplicationQueue(datanodes.has_room)
    for container_id in range(1_000):
        queue.put(container_id, 0)
        queue.park_until_room(container_id, [f"dn{container_id % 3}", f"dn{container_id % 3 + 1}"])

    assert [] == queue.choose(9)
    assert 4 == datanodes.asked


def test_void_queue_entries_do_not_accumulate(datanodes: Datanodes) -> None:
    """A container whose priority changes for months needs no more memory."""
    queue = ReplicationQueue(datanodes.has_room)
    queue.put(1, 0)
    for weight in range(5 * SLACK):
        queue.put(2, weight)
        queue.choose(1)

    assert len(queue._order) <= 2 * len(queue) + SLACK + 2
    assert [1, 2] == queue.choose(9)
