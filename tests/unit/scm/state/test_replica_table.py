"""Reports taken into the replica table as arrays: it holds what a plain dict of them holds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merkle.replica import ReplicaState
from scm.state import records
from scm.state.entities import Replica
from scm.state.replicas import arena, replica_rows
from scm.state.replicas.replica_table import UNSETTLED_STATES, ReplicaTable
from scm.state.replicas.reported_replicas import ReportedReplicas
from tests.support.control.pairs import load_pairs
from tests.support.control.scm_world import replica

IDS = (1, 2, 3, 70_000, 2**40, 2**63 - 1)
"""Small ones, one far off, and such as no control plane here ever gave."""
NODES = ("dn1", "dn2", "dn3")
Model = dict[tuple[int, str], Replica]

TOLD = st.tuples(
    st.sampled_from(NODES),
    st.lists(
        st.tuples(
            st.sampled_from(IDS),
            st.sampled_from([*ReplicaState]),
            st.integers(1, 2),  # bcsid
            st.integers(1, 9),  # when
        ),
        max_size=7,
    ),
)


def told(node: str, facts: list[tuple[int, ReplicaState, int, int]]) -> list[Replica]:
    """Return what a datanode tells."""
    return [
        replace(replica(node, state, container_id=number, bcsid=bcsid), reported_at_ms=at_ms)
        for number, state, bcsid, at_ms in facts
    ]


def take(table: ReplicaTable, model: Model, node: str, replicas: list[Replica]) -> list[object]:
    """Tell a table and a dict the same; return what undoes it in the table."""
    report = ReportedReplicas.of(node, replicas)
    there, gone = report.settled()
    changed, undo = table.apply_report(there, report)
    removed, restore = table.remove_all(node, gone["container_id"])
    before = dict(model)
    for one in replicas:
        model.pop((one.container_id, node), None)
        if one.state is not ReplicaState.DELETED:
            model[(one.container_id, node)] = one

    def plain(known: Model) -> dict[tuple[int, str], Replica]:
        return {key: replace(one, reported_at_ms=0) for key, one in known.items()}

    differs = plain(before).items() ^ plain(model).items()
    assert {key[0] for key, _ in differs} == {*changed["container_id"].tolist(), *removed.tolist()}
    return [undo, restore]


def assert_same(table: ReplicaTable, model: Model) -> None:
    """Compare all that a table tells with a dict of what must be in it."""
    assert len(table) == len(model)
    assert {number for number, _ in model} == set(table.container_ids().tolist())
    for number in IDS:
        mine = sorted(
            (one for one in model.values() if one.container_id == number),
            key=lambda one: one.datanode_id,
        )
        assert tuple(mine) == table.of(number)
        assert (number in table.unsettled) == any(one.state in UNSETTLED_STATES for one in mine)
        for one in mine:
            assert one == table.get((number, one.datanode_id))
    for node in NODES:
        ids = sorted(number for number, holder in model if holder == node)
        assert ids == table.ids_on(node).tolist()
    owner, rows = table.owned(list(IDS))
    assert sorted(
        (IDS[i], int(at)) for i, at in zip(owner, rows["reported_at_ms"], strict=True)
    ) == (sorted((number, one.reported_at_ms) for (number, _), one in model.items()))
    count = sum(one.state is ReplicaState.RECOVERING for one in model.values())
    assert count == table.recovering_count


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows of a test be in several blocks."""
    monkeypatch.setattr(arena, "SHIFT", 2)
    monkeypatch.setattr(arena, "BLOCK_ROWS", 4)


class TestTake:
    @settings(deadline=None)
    @given(st.lists(TOLD, max_size=8))
    def test_replica_table_has_the_last_reported_facts(
        self, reports: list[tuple[str, list[tuple[int, ReplicaState, int, int]]]]
    ) -> None:
        """The replicas are new, changed, unchanged and deleted, with one container named twice
        and ids of all sizes. The table reports those as changed that differ in more than the
        time.
        """
        table, model = ReplicaTable(), Model()
        for node, facts in reports:
            take(table, model, node, told(node, facts))
        assert_same(table, model)

    @settings(deadline=None)
    @given(st.lists(TOLD, max_size=4), TOLD)
    def test_report_applied_to_the_table_is_undone(
        self,
        reports: list[tuple[str, list[tuple[int, ReplicaState, int, int]]]],
        last: tuple[str, list[tuple[int, ReplicaState, int, int]]],
    ) -> None:
        """Only the time of unchanged replicas stays."""
        table, model = ReplicaTable(), Model()
        for node, facts in reports:
            take(table, model, node, told(node, facts))
        before = {key: replace(one, reported_at_ms=0) for key, one in model.items()}
        node, facts = last

        for undo in reversed(take(table, model, node, told(node, facts))):
            undo()  # type: ignore[operator]

        found = {
            (r.container_id, r.datanode_id): replace(r, reported_at_ms=0) for r in table.values()
        }
        assert before == found
        assert {number for number, _ in before} == set(table.container_ids().tolist())

    @settings(deadline=None)
    @given(st.lists(TOLD, max_size=5), TOLD)
    def test_a_snapshot_stays_as_it_was(
        self,
        reports: list[tuple[str, list[tuple[int, ReplicaState, int, int]]]],
        later: tuple[str, list[tuple[int, ReplicaState, int, int]]],
    ) -> None:
        """The snapshot is ordered by container and datanode, and later reports do not change it."""
        table, model = ReplicaTable(), Model()
        for node, facts in reports:
            take(table, model, node, told(node, facts))
        expected = [model[key] for key in sorted(model)]

        snapshot = table.values()
        take(table, model, later[0], told(*later))

        assert len(expected) == len(snapshot)
        assert expected == list(snapshot)
        assert_same(table, model)

    @settings(deadline=None)
    @given(st.lists(TOLD, max_size=5))
    def test_replica_rows_are_read_back_from_disk(
        self, reports: list[tuple[str, list[tuple[int, ReplicaState, int, int]]]]
    ) -> None:
        """Rows and keys equal those of each replica alone, and a table read from them is the
        same.
        """
        table, model, disk = ReplicaTable(), Model(), dict[bytes, bytes]()
        for node, facts in reports:
            report = ReportedReplicas.of(node, told(node, facts))
            there, gone = report.settled()
            changed, _ = table.apply_report(there, report)
            disk |= dict(table.disk_rows(node, changed) if len(changed) else ())
            table.remove_all(node, gone["container_id"])
            for number in gone["container_id"].tolist():
                disk.pop(table.key_bytes((number, node)), None)
        for one in table.values():
            model[(one.container_id, one.datanode_id)] = one

        read = ReplicaTable()
        load_pairs(read, sorted(disk.items()))

        assert {table.key_bytes(key) for key in model} == disk.keys()
        for key, one in model.items():
            kept = replica_rows.replica_from(disk[table.key_bytes(key)])
            assert replace(kept, reported_at_ms=0) == replace(one, reported_at_ms=0)
            model[key] = kept
        assert_same(read, model)


class TestHolding:
    def test_the_dead_do_not_count(self) -> None:
        """A container of which only a dead node has something to say may be empty."""
        table = ReplicaTable()
        full = replica("dn1", container_id=1)
        for one in (full, replace(full, container_id=2), replace(full, datanode_id="dn2")):
            table.apply((one.container_id, one.datanode_id), one)
        table.apply((3, "dn1"), replace(full, container_id=3, is_empty=True))
        asked = np.array([1, 2, 3, 4], np.int64)

        assert [True, True, False, False] == table.has_data(asked).tolist()
        assert [True, False, False, False] == table.has_data(asked, {"dn1"}).tolist()


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "cc"]), st.sampled_from(["", "v"])), min_size=1)
)
def test_rows_read_together_keep_their_own_names(
    names: list[tuple[str, str]],
) -> None:
    """Rows of one length or of several are read together as they are one by one."""
    replicas = [
        replace(replica(node, container_id=number), volume_id=volume)
        for number, (node, volume) in enumerate(names, 1)
    ]
    rows = [replica_rows.replica_row(one) for one in replicas]

    heads, found, which = replica_rows.replica_heads(rows)

    assert list(range(1, len(rows) + 1)) == heads["container_id"].tolist()
    words = [replica_rows.names_of(found[place]) for place in which.tolist()]
    assert [replica_rows.replica_names(one) for one in replicas] == words


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_damaged_row_among_many_is_named(place: int) -> None:
    """By its key, though rows are read together and without their keys."""
    rows = [
        (b"key%d" % n, replica_rows.replica_row(replica("dn1", container_id=n))) for n in (1, 2, 3)
    ]
    key, row = rows[place]
    rows[place] = (key, row[:-3] + b"?" + row[-2:])

    with pytest.raises(records.DamagedRow, match=f"replicas_by_node, key {key.hex()}"):
        load_pairs(ReplicaTable(), rows)
