"""Who is slow is known by its answers, beside those of others, and for a while."""

from suture.client.cluster_client import rotate_replicas
from suture.client.replica_ranking import (
    ANSWERS_MIN,
    FAULTY_FOR_S,
    PATIENCE_S_MIN,
    SLOW_FOR_S,
    SLOW_S_MIN,
    DatanodeStats,
)


class Clock:
    """A clock that is set by hand."""

    now_s = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


def made(*, slow_s: float, usual_s: float, count: int = 20) -> tuple[DatanodeStats, Clock]:
    """Return what is known after answers of three datanodes, of which dn3 is the slow one."""
    clock = Clock()
    conduct = DatanodeStats(monotonic_s=clock)
    for _ in range(count):
        conduct.record_latency("dn1", usual_s)
        conduct.record_latency("dn2", usual_s)
        conduct.record_latency("dn3", slow_s)
    return conduct, clock


def slow_ones(conduct: DatanodeStats) -> list[str]:
    """Return who is slow."""
    return [name for name in ("dn1", "dn2", "dn3", "dn4") if conduct.is_slow(name)]


def test_datanode_many_times_slower_than_others_is_slow() -> None:
    """A slightly slower datanode, a difference that is too small to matter, and equal datanodes
    do not count.
    """
    assert ["dn3"] == slow_ones(made(slow_s=0.5, usual_s=0.01)[0])
    assert [] == slow_ones(made(slow_s=0.02, usual_s=0.01)[0])
    assert [] == slow_ones(made(slow_s=SLOW_S_MIN * 0.9, usual_s=0.0001)[0])
    assert [] == slow_ones(made(slow_s=0.5, usual_s=0.5)[0])


def test_unremarkable_datanodes_have_one_rank() -> None:
    """Clients do not sort them. A slow or failed datanode counts as remarkable at once."""
    for slow_s in (SLOW_S_MIN * 0.9, SLOW_S_MIN * 1.1, 0.5):
        conduct, _ = made(slow_s=slow_s, usual_s=0.0001)
        ranks = {conduct.rank(name) for name in ("dn1", "dn2", "dn3", "dn4")}
        assert len(ranks) == 1 or not conduct.is_unremarkable()
    conduct, _ = made(slow_s=0.01, usual_s=0.01)
    assert conduct.is_unremarkable()
    conduct.record_failure("dn2")
    assert not conduct.is_unremarkable()


def test_late_answer_makes_no_datanode_slow() -> None:
    """A single pause of a healthy host is over when it is noticed."""
    conduct, _ = made(slow_s=0.01, usual_s=0.01)

    conduct.record_latency("dn3", 0.5)

    assert [] == slow_ones(conduct)


def test_slowness_is_forgotten_after_a_while() -> None:
    """The slow datanode is then asked again, and one good answer is enough."""
    conduct, clock = made(slow_s=0.5, usual_s=0.01)

    clock.now_s += SLOW_FOR_S + 1
    forgotten = slow_ones(conduct)
    for name in ("dn1", "dn2", "dn3"):
        conduct.record_latency(name, 0.01)

    assert [] == forgotten == slow_ones(conduct)


def test_single_datanode_is_never_slow() -> None:
    """There is no other datanode to ask."""
    conduct = DatanodeStats()
    conduct.record_latency("dn1", 5.0)

    assert [] == slow_ones(conduct)


def test_failed_datanode_is_asked_last_until_that_is_forgotten() -> None:
    """The more blocks it failed, the later it is asked. A slow but healthy datanode is asked
    before it.
    """
    conduct, clock = made(slow_s=0.5, usual_s=0.01)
    for name in ("dn1", "dn1", "dn2"):
        conduct.record_failure(name)
    then = sorted(["dn1", "dn2", "dn3"], key=conduct.rank)
    clock.now_s += FAULTY_FOR_S + 1

    assert ["dn3", "dn2", "dn1"] == then
    assert [0, 0] == [conduct.fault_count(name) for name in ("dn1", "dn2")]


def test_patience_is_what_nearly_all_answers_take() -> None:
    """The patience is set once there are enough answers, and it is never less than the pauses of
    a busy host.
    """
    conduct = DatanodeStats()
    for number in range(1, ANSWERS_MIN):
        conduct.record_latency("dn1", number / 100)
    before = conduct.patience_s()
    conduct.record_latency("dn1", ANSWERS_MIN / 100)
    quick = DatanodeStats()
    for _ in range(ANSWERS_MIN):
        quick.record_latency("dn1", 0.001)

    assert before is None
    assert 0.31 == conduct.patience_s()
    assert PATIENCE_S_MIN == quick.patience_s()


def test_few_are_asked_twice() -> None:
    """
    Some that were saved up, then one in twenty: where all are slow, they get no more to do.
    """
    conduct = DatanodeStats()
    for _ in range(ANSWERS_MIN):
        conduct.record_latency("dn1", 0.001)
    hedged_count = 0
    for _ in range(1_000):
        if conduct.patience_s() is not None:
            hedged_count += 1
            conduct.record_hedge("dn1", 0.02)
        else:
            conduct.record_latency("dn1", 0.02)

    assert 50 <= hedged_count <= 70


def test_equal_replicas_take_turns_block_by_block() -> None:
    """
    The first of each block in a row is another one; who is not equal stays behind.
    """
    orders = [rotate_replicas(["a", "b", "c", "late"], 3, block_id) for block_id in range(30)]

    assert {10} == {[order[0] for order in orders].count(name) for name in "abc"}
    assert {"late"} == {order[-1] for order in orders}
    assert all(["a", "b", "c", "late"] == sorted(order) for order in orders)
    assert ["a", "b"] == rotate_replicas(["a", "b"], 0, 1) == rotate_replicas(["a", "b"], 1, 1)
