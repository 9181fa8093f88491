"""The tables' indexes agree with their rows, whatever is put, removed and undone."""

from hypothesis import given, settings
from hypothesis import strategies as st

from merkle.replica import ReplicaState
from scm.state.facts import Key, Kind, Pending, Replica
from scm.state.key_table import KeyTable
from scm.state.replicas.replica_table import UNSETTLED_STATES, ReplicaTable
from scm.state.tables import PendingTable
from tests.support.control.scm_world import replica

STEPS = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.sampled_from(["dn1", "dn2", "dn3"]),
        st.sampled_from([None, ReplicaState.OPEN, ReplicaState.CLOSED]),
    ),
    max_size=40,
)


class TestReplicaTable:
    @settings(deadline=None)
    @given(STEPS)
    def test_indexes_agree_with_a_plain_dict(
        self, steps: list[tuple[int, str, ReplicaState | None]]
    ) -> None:
        """By container, by node, count and unsettled set: all say what one dict says."""
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
        command = Pending(5, Kind.CLOSE, 9, "dn1")
        table.apply(5, command)

        assert [command] == table.of_node("dn1")
        assert [command] == table.of_container(9)
        assert command == table.about(Kind.CLOSE, 9, "dn1")
        assert table.about(Kind.RECONCILE, 9, "dn1") is None

        table.apply(5, None)

        assert [] == table.of_node("dn1")
        assert [] == table.of_container(9)
        assert table.about(Kind.CLOSE, 9, "dn1") is None
