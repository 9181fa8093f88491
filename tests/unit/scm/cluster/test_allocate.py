"""Where replicas go."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scm.cluster.allocate import TargetCandidate, choose_nodes
from suture.errors import Code, UnavailableError

GIB = 1024**3
NEEDED_BYTES = 5 * GIB


def node(name: str, rack: str = "/r", **more: int | bool) -> TargetCandidate:
    """Build an empty node with 100 GiB."""
    candidate = TargetCandidate(name, rack, 100 * GIB, 100 * GIB, 100 * GIB, 0, 0)
    return replace(candidate, **more)  # type: ignore[arg-type]


def choose(*candidates: TargetCandidate, container_id: int = 1) -> list[str]:
    """Choose three."""
    return choose_nodes(candidates, count=3, needed_bytes=NEEDED_BYTES, container_id=container_id)


CANDIDATES = st.lists(
    st.builds(
        TargetCandidate,
        datanode_id=st.text("abcdef", min_size=1, max_size=3),
        rack=st.sampled_from(["/r1", "/r2", "/r3", "/r4"]),
        capacity_bytes=st.integers(0, 10 * NEEDED_BYTES),
        available_bytes=st.integers(0, 3 * NEEDED_BYTES),
        largest_volume_bytes=st.integers(0, 3 * NEEDED_BYTES),
        used_bytes=st.integers(0, 3 * NEEDED_BYTES),
        scheduled_bytes=st.integers(0, NEEDED_BYTES),
        has_failed_lately=st.booleans(),
    ),
    unique_by=lambda candidate: candidate.datanode_id,
    max_size=10,
)


class TestChooseNodes:
    @settings(deadline=None)
    @given(CANDIDATES, st.integers(1, 100))
    def test_chosen_nodes_differ_and_have_room_or_the_choice_fails(
        self, candidates: list[TargetCandidate], container_id: int
    ) -> None:
        """The choice does not depend on the order of the candidates."""
        roomy = {c.datanode_id for c in candidates if c.has_room(NEEDED_BYTES)}

        if len(roomy) < 3:
            with pytest.raises(UnavailableError) as caught:
                choose(*candidates, container_id=container_id)
            assert caught.value.code is Code.NOT_ENOUGH_NODES
            return
        chosen = choose(*candidates, container_id=container_id)

        assert 3 == len(set(chosen))
        assert roomy.issuperset(chosen)
        assert chosen == choose(*reversed(candidates), container_id=container_id)

    def test_racks_differ_as_far_as_there_are_racks(self) -> None:
        """Three racks: one each. Two racks: both."""
        three = [node(f"n{i}", f"/r{i % 3}") for i in range(9)]
        two = [node(f"n{i}", f"/r{i % 2}") for i in range(8)]
        racks_of = {c.datanode_id: c.rack for c in three}

        assert 3 == len({racks_of[name] for name in choose(*three)})
        assert {"0", "1"} == {str(int(name[1:]) % 2) for name in choose(*two)}

    def test_the_least_loaded_are_chosen(self) -> None:
        """Used bytes and bytes promised to open containers both count."""
        full = [node(f"full{i}", used_bytes=50 * GIB) for i in range(3)]
        promised = [node(f"promised{i}", scheduled_bytes=40 * GIB) for i in range(3)]
        empty = [node(f"empty{i}") for i in range(3)]

        assert {"empty0", "empty1", "empty2"} == set(choose(*full, *promised, *empty))

    def test_a_node_with_room_only_in_pieces_is_not_chosen(self) -> None:
        """A replica lies on one volume."""
        pieces = node("pieces", largest_volume_bytes=NEEDED_BYTES - 1)

        with pytest.raises(UnavailableError):
            choose(pieces, node("a"), node("b"))

    def test_promised_room_is_not_promised_again(self) -> None:
        """Available bytes that open containers will use are not there."""
        busy = node("busy", available_bytes=NEEDED_BYTES * 2, scheduled_bytes=NEEDED_BYTES + 1)

        with pytest.raises(UnavailableError):
            choose(busy, node("a"), node("b"))

    def test_a_node_a_writer_complained_about_comes_last(self) -> None:
        """The node comes last even if it is alone on its rack."""
        bad = node("bad", "/other", has_failed_lately=True)

        assert "bad" not in choose(bad, node("a"), node("b"), node("c"))
        assert "bad" in choose(bad, node("a"), node("b"))

    def test_equal_nodes_share_the_containers(self) -> None:
        """Ties are broken differently for each container, so no node gets all."""
        nodes = [node(f"n{i}") for i in range(6)]
        counts = dict.fromkeys((n.datanode_id for n in nodes), 0)

        for container_id in range(300):
            for name in choose(*nodes, container_id=container_id):
                counts[name] += 1

        assert all(100 < count < 200 for count in counts.values())
