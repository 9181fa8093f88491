"""Where the next replica of a container goes."""

from dataclasses import replace

import pytest

from scm.cluster.allocate import TargetCandidate
from scm.cluster.copy_targets import choose_targets


def node(name: str, rack: str, **more: int | bool) -> TargetCandidate:
    """Build an empty node of 100 bytes."""
    return replace(TargetCandidate(name, rack, 100, 100, 100, 0, 0), **more)  # type: ignore[arg-type]


def targets(
    *candidates: TargetCandidate, count: int = 1, used: str = "", out: str = "", failed: str = ""
) -> list[str]:
    """Choose nodes for a container of 10 bytes."""
    return choose_targets(
        candidates,
        count=count,
        needed_bytes=10,
        used_racks=list(used),
        excluded=out.split(),
        failed_at_s={name: at_s for at_s, name in enumerate(failed.split(), 1)},
        container_id=1,
    )


class TestTargets:
    def test_the_emptiest_rack_comes_first(self) -> None:
        """Counting the replicas that stay and those just chosen."""
        nodes = [node("d1", "a"), node("d2", "a"), node("d3", "b"), node("d4", "c", used_bytes=50)]

        assert ["d3", "d4"] == targets(*nodes, count=2, used="aa")
        assert ["d4"] == targets(*nodes, used="aab")
        assert {"a", "b", "c"} == {
            node.rack for node in nodes if node.datanode_id in targets(*nodes, count=3)
        }

    def test_rack_of_a_chosen_target_counts_once(self) -> None:
        """Its rack is still the emptier one, although another node has less load."""
        nodes = [node("d1", "a"), node("d2", "b"), node("d3", "b", used_bytes=50)]

        assert ["d2", "d3"] == targets(*nodes, count=2, used="aa")

    def test_a_node_that_failed_a_writer_comes_last(self) -> None:
        """The node comes last even if its rack is emptier."""
        nodes = [node("d1", "a", has_failed_lately=True), node("d2", "b")]

        assert ["d2", "d1"] == targets(*nodes, count=2, used="bb")

    def test_a_node_to_which_this_container_could_not_be_copied_comes_last(self) -> None:
        """The node is chosen if there is no other."""
        nodes = [node("d1", "a"), node("d2", "b", used_bytes=50)]

        assert ["d2", "d1"] == targets(*nodes, count=2, used="bb", failed="d1")
        assert ["d1"] == targets(*nodes, out="d2", failed="d1")
        assert ["d2", "d1"] == targets(*nodes, count=2, failed="d2 d1"), "longest ago first"

    def test_the_less_loaded_of_one_rack_is_taken(self) -> None:
        """Promised bytes are load, too."""
        nodes = [node("d1", "a", scheduled_bytes=30), node("d2", "a", used_bytes=20)]

        assert ["d2", "d1"] == targets(*nodes, count=2)

    def test_target_is_never_repeated_full_or_excluded(self) -> None:
        """Fewer targets may be returned than were requested."""
        nodes = [
            node("d1", "a"),
            node("d2", "a", available_bytes=9),
            node("d3", "a", available_bytes=15, scheduled_bytes=6),
            node("d4", "a", largest_volume_bytes=9),
            node("d5", "a"),
        ]

        assert ["d1"] == targets(*nodes, count=5, out="d5")

    @pytest.mark.parametrize(
        ("more", "has_room"),
        [
            ({"available_bytes": 10}, True),
            ({"available_bytes": 15, "scheduled_bytes": 5}, True),
            ({"available_bytes": 15, "scheduled_bytes": 6}, False),
            ({"largest_volume_bytes": 10}, True),
            ({"largest_volume_bytes": 9}, False),
        ],
    )
    def test_room_is_what_is_not_promised_on_one_volume(
        self, more: dict[str, int], has_room: bool
    ) -> None:
        """To the byte."""
        assert has_room is node("d1", "a", **more).has_room(10)

    def test_load_is_a_share_of_the_capacity(self) -> None:
        """The load is in thousandths. A node without capacity causes no division by zero."""
        assert 750 == node("d1", "a", used_bytes=50, scheduled_bytes=25).load
        assert 5_000 == node("d1", "a", capacity_bytes=0, used_bytes=5).load
