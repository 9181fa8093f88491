"""The census: sums over all replicas, kept up to date one by one."""

from dataclasses import replace

from agent.observe.replica_totals import AGE_BOUNDS_S, ReplicaTotals
from agent.store.index.columns import decode_columns
from agent.store.index.facts import ReplicaFacts
from agent.store.index.rows import ReplicaRow, encode_replica
from merkle.replica import Bcsid, ContainerId, ReplicaState

NOW_MS = 1_000 * 86_400_000
DAY_MS = 86_400_000


def replica(number: int, *, scanned_at_ms: int, **other: object) -> ReplicaFacts:
    """Return the facts of a closed replica of 100 bytes."""
    facts = ReplicaFacts(
        container_id=ContainerId(number),
        state=ReplicaState.CLOSED,
        former_state=None,
        replica_index=0,
        bcsid=Bcsid(1),
        used_bytes=100,
        block_count=1,
        origin_datanode_id="dn",
        volume_id="v1",
        tree=None,
        data_scan_at_ms=scanned_at_ms,
        finding_count=0,
    )
    return replace(facts, **other)  # type: ignore[arg-type]


def census_of(*replicas: ReplicaFacts, interval_s: float = 60) -> ReplicaTotals:
    """Return a census of these replicas."""
    census = ReplicaTotals(interval_s=interval_s)
    for one in replicas:
        census.put(one)
    return census


def test_bytes_are_counted_by_the_age_of_their_verification() -> None:
    """In time is what is younger than the interval; what was never read is beyond all bounds."""
    census = census_of(
        replica(1, scanned_at_ms=NOW_MS - DAY_MS),
        replica(2, scanned_at_ms=NOW_MS - 9 * DAY_MS),
        replica(3, scanned_at_ms=0),
        interval_s=7 * 86_400,
    )

    volume = census.summary(NOW_MS).volumes["v1"]

    assert (300, 100, 0, 1) == (
        volume.data_bytes,
        volume.in_time_bytes,
        volume.oldest_at_ms,
        volume.never_count,
    )
    assert 100 == volume.age_bytes[AGE_BOUNDS_S.index(86_400)]
    assert 100 == volume.age_bytes[AGE_BOUNDS_S.index(10 * 86_400)]
    assert 100 == volume.age_bytes[-1]


def test_an_open_replica_is_no_part_of_the_promise() -> None:
    """A replica that is being written has no tree, and is not scanned."""
    census = census_of(replica(1, scanned_at_ms=0, state=ReplicaState.OPEN))

    summary = census.summary(NOW_MS)

    assert {} == summary.volumes
    assert {"OPEN": 1} == dict(summary.states)


def test_a_change_is_seen_at_once() -> None:
    """A summary is kept only while nothing changes."""
    census = census_of(replica(1, scanned_at_ms=NOW_MS))
    before = census.summary(NOW_MS)

    census.put(replica(2, scanned_at_ms=NOW_MS, finding_count=3))
    damaged = census.summary(NOW_MS)
    census.drop(ContainerId(2))

    assert (0, ()) == (before.finding_count, before.damaged)
    assert (3, (2,)) == (damaged.finding_count, damaged.damaged)
    assert 0 == census.summary(NOW_MS).finding_count


def test_ages_grow_although_nothing_changes() -> None:
    """A summary is not kept for long: time alone breaks a promise."""
    census = census_of(replica(1, scanned_at_ms=NOW_MS))
    assert 100 == census.summary(NOW_MS).volumes["v1"].in_time_bytes

    later = census.summary(NOW_MS + 61_000)

    assert 0 == later.volumes["v1"].in_time_bytes


def test_many_at_once_are_what_they_are_one_by_one() -> None:
    """A start fills in whole volumes; the sums are those of replicas that came one by one."""
    facts = [
        replica(number, scanned_at_ms=NOW_MS - number * DAY_MS, state=state, finding_count=number)
        for number, state in enumerate(ReplicaState, start=1)
    ]
    filled = ReplicaTotals(interval_s=60)
    filled.put(replica(99, scanned_at_ms=0, volume_id="v0"))
    columns, damaged = decode_columns(
        (
            one.container_id.to_bytes(8),
            encode_replica(
                ReplicaRow(
                    state=one.state,
                    used_bytes=one.used_bytes,
                    data_scan_at_ms=one.data_scan_at_ms,
                    finding_count=one.finding_count,
                )
            ),
        )
        for one in facts
    )

    filled.fill("v1", columns)

    assert [] == damaged
    expected = census_of(replica(99, scanned_at_ms=0, volume_id="v0"), *facts)
    assert expected.summary(NOW_MS) == filled.summary(NOW_MS)
