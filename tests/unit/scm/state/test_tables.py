"""The tables' indexes agree with their rows, whatever is put, removed and undone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merkle.replica import ReplicaState
from scm.state import records
from scm.state.entities import (
    CommandKind,
    Container,
    ContainerState,
    Hold,
    Key,
    KeyBlock,
    PendingCommand,
    Replica,
)
from scm.state.replicas.replica_table import UNSETTLED_STATES, ReplicaTable
from scm.state.table import id_key
from scm.state.tables.container_table import ContainerTable
from scm.state.tables.key_table import KeyTable
from scm.state.tables.pending_table import PendingTable
from scm.state.tables.small_tables import HoldTable
from tests.support.control.pairs import load_pairs
from tests.support.control.scm_world import replica

STEPS = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.sampled_from(["dn1", "dn2", "dn3"]),
        st.sampled_from([None, ReplicaState.OPEN, ReplicaState.CLOSED]),
    ),
    max_size=40,
)

BLOCKS = st.builds(
    KeyBlock, st.integers(1, 3), st.integers(1, 9), st.integers(0, 9), st.integers(0, 99)
)
CLOSED = Container(5, ContainerState.CLOSED, 3, 1, 0, ())
CONTAINERS = st.builds(
    Container,
    st.integers(1, 9) | st.just(2**40),
    st.sampled_from(ContainerState),
    st.sampled_from([3, 0, 254, 255, 70_000]),
    st.integers(0, 9),
    st.just(0),
    st.sampled_from([(), ("dn1", "dn2")]),
    st.sampled_from("ab"),
    scheme=st.sampled_from(["", "", "rs-2-1-1024k"]),
)


def wanted_of(made: Container) -> int:
    """Return how many replicas a byte can say that a container is to have, if that is enough."""
    is_kept = made.state in {ContainerState.CLOSED, ContainerState.QUASI_CLOSED}
    is_said = is_kept and not made.scheme and made.container_id < 2**26
    return made.replication_factor if is_said and made.replication_factor < 255 else -1


class TestReplicaTable:
    @settings(deadline=None)
    @given(STEPS)
    def test_indexes_agree_with_a_plain_dict(
        self, steps: list[tuple[int, str, ReplicaState | None]]
    ) -> None:
        """The indexes by container and by node, the count and the unsettled set agree with one
        dict.
        """
        table, model = ReplicaTable(), dict[tuple[int, str], Replica]()

        for container_id, node, state in steps:
            place = (container_id, node)
            value = None if state is None else replica(node, state, container_id=container_id)
            assert table.apply(place, value) == model.get(place)
            model.pop(place, None)
            if value is not None:
                model[place] = value

        self.assert_same(table, model)

    @settings(deadline=None)
    @given(STEPS, STEPS)
    def test_applying_what_was_before_undoes(
        self,
        first: list[tuple[int, str, ReplicaState | None]],
        second: list[tuple[int, str, ReplicaState | None]],
    ) -> None:
        """An undo in reverse order restores every index."""
        table, model = ReplicaTable(), dict[tuple[int, str], Replica]()
        for container_id, node, state in first:
            value = None if state is None else replica(node, state, container_id=container_id)
            table.apply((container_id, node), value)
            model.pop((container_id, node), None)
            if value is not None:
                model[(container_id, node)] = value
        undo = []

        for container_id, node, state in second:
            value = None if state is None else replica(node, state, container_id=container_id)
            undo.append(((container_id, node), table.apply((container_id, node), value)))
        for place, before in reversed(undo):
            table.apply(place, before)

        self.assert_same(table, model)

    @staticmethod
    def assert_same(table: ReplicaTable, model: dict[tuple[int, str], Replica]) -> None:
        """Compare the table with a dict of what must be in it."""
        assert len(table) == len(model)
        for container_id in range(1, 5):
            expected = sorted(
                (r for r in model.values() if r.container_id == container_id),
                key=lambda r: r.datanode_id,
            )
            assert tuple(expected) == table.of(container_id)
            is_unsettled = any(r.state in UNSETTLED_STATES for r in expected)
            assert is_unsettled == (container_id in table.unsettled)
        for node in ("dn1", "dn2", "dn3"):
            ids = {r.container_id for r in model.values() if r.datanode_id == node}
            assert ids == table.on(node)


class TestContainerTable:
    @settings(deadline=None)
    @given(st.lists(CONTAINERS, unique_by=lambda container: container.container_id))
    def test_containers_read_from_disk_equal_those_put(self, put: list[Container]) -> None:
        """Containers in every state are compared, with every index."""
        loaded, one_by_one = ContainerTable(), ContainerTable()
        for container in put:
            one_by_one.apply(container.container_id, container)

        load_pairs(loaded, ((b"", records.CONTAINER.row(container)) for container in put))

        ids = [container.container_id for container in put]
        assert one_by_one.at_rest([*ids, 99]) == loaded.at_rest([*ids, 99])
        assert one_by_one.not_closed() == loaded.not_closed()
        assert put == loaded.values()
        asked = np.array([*ids, 99, 2**62])
        wanted = [*map(wanted_of, put), records.NO_COUNT, records.NO_COUNT]
        assert wanted == one_by_one.wanted.of(asked).tolist()
        assert wanted == loaded.wanted.of(asked).tolist()
        assert [*put, None] == [loaded.get(number) for number in [*ids, 99]]
        assert put == loaded.values(), "as they are once they were asked for"
        assert [*(c.allocated_bcsid for c in put), 0] == loaded.promised_counts([*ids, 99])
        assert +one_by_one.states == +loaded.states
        assert one_by_one.closing == loaded.closing
        assert set(ids) == one_by_one.touched
        assert set() == loaded.touched, "who counts begins with all that there is"
        assert {c.container_id for c in put if c.state is ContainerState.OPEN} == {
            container.container_id for container in loaded.open_all()
        }
        for client in "ab":
            assert one_by_one.open_of(client) == loaded.open_of(client)

    @pytest.mark.parametrize(("factor", "scheme"), [(1, ""), (3, ""), (5, "rs-3-2-1024k")])
    def test_facts_read_off_a_row_equal_the_decoded_ones(self, factor: int, scheme: str) -> None:
        """The checksum may have any bytes."""
        rows = [
            records.CONTAINER.row(
                replace(CLOSED, sequence_id=number, replication_factor=factor, scheme=scheme)
            )
            for number in range(2_000)
        ]

        assert any(b"," in row[:4] for row in rows)
        count = records.NO_COUNT if scheme else factor
        assert ([CLOSED.container_id] * 2_000, [count] * 2_000) == records.at_rest(rows)[1:]

    def test_resting_container_that_was_replaced_is_restored_by_undo(self) -> None:
        """The container was not accessed since it was read from the disk."""
        table = ContainerTable()
        load_pairs(table, [(id_key(CLOSED.container_id), records.CONTAINER.row(CLOSED))])
        opened = replace(CLOSED, state=ContainerState.OPEN, client_id="a")

        undo = table.swap(CLOSED.container_id, opened)
        assert [opened] == table.open_of("a")
        undo()

        assert [] == table.open_all()
        assert [CLOSED] == table.values()
        assert {ContainerState.CLOSED: 1} == +table.states

    @pytest.mark.parametrize(
        "changes",
        [
            {"state": ContainerState.OPEN},
            {"pipeline": ("dn1",)},
            {"client_id": 'a"b'},
            {"client_id": "\u00fc"},
            {"close_reason": "a\\b"},
            {"sequence_id": -1},
        ],
    )
    def test_row_that_is_not_plainly_at_rest_is_decoded(self, changes: dict[str, Any]) -> None:
        """A row that stays encoded must have no fault that shows later."""
        rows = [records.CONTAINER.row(one) for one in (CLOSED, replace(CLOSED, **changes))]

        assert ([0], [CLOSED.container_id], [3]) == records.at_rest(rows)

    @pytest.mark.parametrize(
        "bad",
        [
            records.CONTAINER.row(CLOSED).replace(b"CLOSED", b"OPEN"),
            records.CONTAINER.row(CLOSED).replace(b'"CLOSED",3', b'"CLOSED",2'),
            b"abc",
            records.pack([1, 2]),
            b"",
            records.pack([7, "GONE", 3, 0, 0, [], "", False, 0, 0, 0, 0, "", ""]),
            records.pack([7, "CLOSED", 3, 0, 0, None, "", False, 0, 0, 0, 0, "", ""]),
        ],
        ids=["changed", "changed at rest", "short", "fields", "empty", "state", "pipeline"],
    )
    def test_a_damaged_row_among_many_is_named(self, bad: bytes) -> None:
        """By its key, though rows are read together."""
        rows = [(id_key(n), records.CONTAINER.row(CLOSED)) for n in range(1, 5)]
        rows.insert(2, (id_key(77), bad))

        with pytest.raises(records.DamagedRow, match=f"containers, key {id_key(77).hex()}"):
            load_pairs(ContainerTable(), rows)

    @pytest.mark.parametrize("table", [ContainerTable, HoldTable])
    def test_damaged_row_far_behind_is_refused(
        self, table: type[ContainerTable | HoldTable], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rows are read in portions, and the key is found in all of them."""
        monkeypatch.setattr("scm.state.table.LOADED_AT_ONCE", 2)
        made = table()
        value: Any = CLOSED if table is ContainerTable else Hold(1, "dn1", 0, "why")
        rows = [(id_key(n), made.row(value)) for n in range(1, 6)]
        rows.insert(3, (id_key(77), b"abc"))

        with pytest.raises(records.DamagedRow, match=f"key {id_key(77).hex()}"):
            load_pairs(made, rows)


class TestHoldTable:
    @settings(deadline=None)
    @given(
        st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["", "dn1", "dn2"]), st.booleans()))
    )
    def test_hold_table_agrees_with_a_dict(self, steps: list[tuple[int, str, bool]]) -> None:
        """Holds are put, set again and removed."""
        table, model = HoldTable(), dict[tuple[int, str], Hold]()
        for at_ms, (container_id, node, is_put) in enumerate(steps):
            hold = Hold(container_id, node, at_ms, "why") if is_put else None
            table.apply((container_id, node), hold)
            model.pop((container_id, node), None)
            if hold is not None:
                model[(container_id, node)] = hold

        for container_id in (1, 2, 3):
            held = {hold.datanode_id: hold for hold in table.of(container_id)}
            assert held == {node: hold for (n, node), hold in model.items() if n == container_id}


class TestKeyTable:
    @settings(deadline=None)
    @given(st.lists(st.text(min_size=1, max_size=3)), st.text(max_size=2), st.integers(1, 4))
    def test_pages_are_all_names_with_the_prefix_in_order(
        self, names: list[str], prefix: str, count: int
    ) -> None:
        """Going on after the last name of a page shows every name once."""
        table = KeyTable()
        for name in names:
            table.apply(name, Key(name, 0, 1, ()))

        shown: list[str] = []
        while page := table.page(
            prefix=prefix, start_after=shown[-1] if shown else "", count=count
        ):
            shown += [key.name for key in page]

        assert sorted({n for n in names if n.startswith(prefix)}) == shown

    @settings(deadline=None)
    @given(st.lists(st.tuples(st.text(max_size=3), st.lists(BLOCKS, max_size=3))))
    def test_keys_read_from_disk_equal_those_put(
        self, put: list[tuple[str, list[KeyBlock]]]
    ) -> None:
        """The names and the needed containers agree, in whatever order the rows come."""
        keys = {name: Key(name, 0, 1, tuple(blocks)) for name, blocks in put}
        loaded, one_by_one = KeyTable(), KeyTable()
        for key in keys.values():
            one_by_one.apply(key.name, key)

        load_pairs(loaded, ((b"", records.KEY.row(key)) for key in keys.values()))

        assert sorted(keys) == [k.name for k in loaded.page(prefix="", start_after="", count=99)]
        assert one_by_one.last_bcsids() == loaded.last_bcsids()
        for container_id in range(1, 4):
            assert one_by_one.blocks_in(container_id) == loaded.blocks_in(container_id)

    def test_the_last_commit_that_is_needed_is_exact_or_not_known(self) -> None:
        """A removed key may have been the only one that needed it; a later one makes it known."""
        table = KeyTable()
        for name, bcsid in (("a", 3), ("b", 7), ("c", 5)):
            table.apply(name, Key(name, 0, 1, (KeyBlock(1, bcsid, bcsid, 10),)))
        known = [table.needed_bcsid_in(1)]

        for name, bcsid in (("c", 0), ("b", 0), ("d", 6), ("e", 8)):
            block = KeyBlock(1, bcsid, bcsid, 10)
            table.apply(name, Key(name, 0, 1, (block,)) if bcsid else None)
            known.append(table.needed_bcsid_in(1))
        for name in "ade":
            table.apply(name, None)

        assert [7, 7, 0, 0, 8] == known
        assert (0, 0) == (table.needed_bcsid_in(1), table.blocks_in(1))
        assert {1} == table.touched

    def test_a_removed_name_is_not_listed(self) -> None:
        """Removing a key takes it off the pages too."""
        table = KeyTable()
        for name in "abc":
            table.apply(name, Key(name, 0, 1, ()))

        table.apply("b", None)

        assert ["a", "c"] == [key.name for key in table.page(prefix="", start_after="", count=9)]


class TestPendingTable:
    def test_a_command_is_found_by_node_container_and_target(self) -> None:
        """The three questions asked about commands have one answer, and none after removal."""
        table = PendingTable()
        command = PendingCommand(5, CommandKind.CLOSE, 9, "dn1")
        table.apply(5, command)

        assert [command] == table.of_node("dn1")
        assert [command] == table.of_container(9)
        assert command == table.about(CommandKind.CLOSE, 9, "dn1")
        assert table.about(CommandKind.RECONCILE, 9, "dn1") is None

        table.apply(5, None)

        assert [] == table.of_node("dn1")
        assert [] == table.of_container(9)
        assert table.about(CommandKind.CLOSE, 9, "dn1") is None
