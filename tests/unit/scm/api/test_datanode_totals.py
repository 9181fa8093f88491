"""What datanodes say of themselves, added up."""

from dataclasses import replace

import pytest

from scm.api.cluster_status.datanode_totals import by_rack, summed
from scm.api.pages.ranking import remarks, worst_nodes, worst_racks, worst_volumes
from scm.api.views import NodeView
from scm.state.entities import Liveness, Node, NodeHealthState, OpState, ReportedVolume
from scm.state.history.interval_samples import NEVER_VERIFIED, NOTHING_TO_VERIFY

NOW_MS = 1_800_000_000_000
DISK = ReportedVolume("v", "/data", 100, 40, 60, 3, False, NOW_MS - 5_000, "", 50, 50)


def view(
    name: str,
    *volumes: ReportedVolume,
    rack: str = "/r",
    health: NodeHealthState = NodeHealthState.HEALTHY,
    op_state: OpState = OpState.IN_SERVICE,
    has_reported: bool = True,
) -> NodeView:
    """Return a node that has called."""
    node = Node(name, f"{name}:1", rack, "1", 1, op_state, 0, 1, 1)
    live = Liveness(0.0, NOW_MS, volumes or (DISK,), ())
    return NodeView(node, health, NOW_MS - 60_000, live, 3, has_reported, is_managed=True)


@pytest.mark.parametrize("op_state", tuple(OpState))
@pytest.mark.parametrize("health", tuple(NodeHealthState))
def test_node_totals_count_heard_silent_and_gone_nodes(
    health: NodeHealthState, op_state: OpState
) -> None:
    """Only a decommissioned node may be silent. It counts then neither as heard nor for its
    capacity.
    """
    sums = summed([view("a"), view("b", health=health, op_state=op_state)])

    is_heard = health is NodeHealthState.HEALTHY
    is_gone = op_state is OpState.DECOMMISSIONED and not is_heard
    assert 2 == sums.node_count
    assert 1 + is_heard == sums.heard_count
    assert ([] if is_heard or is_gone else ["b"]) == sums.silent
    assert 2 - is_gone == sums.expected_count
    assert (100 if is_gone else 200) == sums.capacity_bytes


def test_a_node_that_named_not_all_is_unreported_only_while_it_is_heard() -> None:
    """A silent node is reported as silent only."""
    sums = summed(
        [
            view("a", has_reported=False),
            view("b", has_reported=False, health=NodeHealthState.DEAD),
        ]
    )

    assert (["a"], ["b"]) == (sums.unreported, sums.silent)


def test_the_oldest_verification_is_that_of_data_that_can_be_read() -> None:
    """A failed or empty volume has none. A volume that was never read is the oldest."""
    failed = replace(DISK, failed=True, oldest_scan_at_ms=1)
    empty = replace(DISK, container_count=0, data_bytes=0, oldest_scan_at_ms=0)
    never = replace(DISK, path="/never", oldest_scan_at_ms=0)

    assert NOTHING_TO_VERIFY == summed([view("a", failed, empty)]).oldest_scan_at_ms
    assert NOW_MS - 5_000 == summed([view("a", failed, DISK, empty)]).oldest_scan_at_ms
    sums = summed([view("a", DISK, never, DISK)])
    assert (NEVER_VERIFIED, "/never of a") == (sums.oldest_scan_at_ms, sums.oldest_on)


def test_nodes_that_need_attention_most_come_first() -> None:
    """The order is dead, silent, broken, unreported, leaving, full, old."""
    old = replace(DISK, oldest_scan_at_ms=NOW_MS - 90_000)
    nodes = [
        view("h-fine"),
        view("g-old", old),
        view("f-full", replace(DISK, available_bytes=1)),
        view("e-leaving", op_state=OpState.DECOMMISSIONING),
        view("d-unreported", has_reported=False),
        view("c-broken", replace(DISK, failed=True)),
        view("b-silent", health=NodeHealthState.STALE),
        view("a-dead", health=NodeHealthState.DEAD),
    ]

    assert [n.node.datanode_id[0] for n in worst_nodes(nodes, 8)] == list("abcdefgh")
    assert ["c-broken", "f-full", "g-old"] == [
        place.datanode_id for place in worst_volumes(nodes, 3)
    ]
    racks = by_rack([view("x", rack="/1"), view("y", rack="/2", health=NodeHealthState.DEAD)])
    assert ["/2", "/1"] == [rack.name for rack in worst_racks(racks, 2)]


def test_remarks_say_why() -> None:
    """In words, the worst first."""
    broken = view("a", replace(DISK, failed=True), DISK, op_state=OpState.ENTERING_MAINTENANCE)
    silent = view("b", replace(DISK, available_bytes=3), health=NodeHealthState.STALE)

    assert ["1 of 2 volumes failed", "entering maintenance"] == list(remarks(broken, NOW_MS))
    assert ["silent, last heartbeat 1 min ago", "a volume is 97 % full"] == list(
        remarks(silent, NOW_MS)
    )
