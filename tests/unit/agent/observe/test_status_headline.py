"""The one line that says whether the data is whole: every combination of what may be the matter."""

from itertools import product

from suture.pages.status_headline import DataStatus, headline, unreachable_nodes
from suture.wire.v1 import scm_pb2

NOW_MS = 1_800_000_000_000
REASONS = ("1 container whose replicas differ", "safe mode: 2 of 3 nodes have reported")
ALL_CLEAR = "no damage is known"


def told(**facts: object) -> DataStatus:
    """Return what is known where all is well, but for `facts`."""
    well: dict[str, object] = {
        "asked_count": 3,
        "data_bytes": 1000,
        "in_time_bytes": 1000,
        "interval_s": 604_800.0,
        "oldest_at_ms": NOW_MS - 60_000,
        "oldest_on": "/vol1",
    }
    return DataStatus(**(well | facts))  # type: ignore[arg-type]


def test_healthy_headline_says_that_nothing_is_damaged() -> None:
    """Only a healthy cluster gets this headline."""
    line = headline(told(), NOW_MS)

    assert line.is_well
    assert (
        "100 % of bytes verified within 7 d; oldest 60 s on /vol1; no damage is known; "
        "no scan is due" == line.text.replace("1 min on", "60 s on")
    )


def test_every_combination() -> None:
    """The causes are reasons of the control plane, silent nodes, contradictions, failed volumes,
    stalled workers, findings and no bytes. Each is named, and nothing else is claimed. Bytes
    that are due later are named, and need no action.
    """
    seen = 0
    for silent, reasons, troubles, findings, share in product(
        ((), ("aaaaaaaa-1",), ("aaaaaaaa-1", "b", "c")),
        ((), REASONS[:1], REASONS),
        product((0, 1), repeat=3),
        (0, 1, 2),
        ((0, 0), (999, 1000), (1000, 1000)),
    ):
        contradictory, failed, stalled = troubles
        line = headline(
            told(
                silent=silent,
                reasons=reasons,
                contradictory_count=contradictory,
                failed_volume_count=failed,
                stalled_worker_count=stalled,
                finding_count=findings,
                in_time_bytes=share[0],
                data_bytes=share[1],
            ),
            NOW_MS,
        )
        is_wrong = bool(silent or reasons or any(troubles) or findings)

        assert (not is_wrong) == line.is_well, line.text
        assert (ALL_CLEAR in line.text) == (not is_wrong and share[1] > 0), line.text
        assert line.text.startswith("; ".join(reasons))
        assert (f"{len(silent)} of 3 datanodes do not answer" in line.text) == bool(silent)
        assert ("contradict" in line.text) == bool(contradictory)
        assert ("1 volume failed" in line.text) == bool(failed)
        assert ("1 worker stalled" in line.text) == bool(stalled)
        assert ("repair" in line.text) == bool(findings)
        assert ("100 %" in line.text) == (share == (1000, 1000))
        if silent:
            assert "of bytes verified" not in line.text
        seen += 1
    assert 3 * 3 * 8 * 3 * 3 == seen


def test_a_reason_of_the_control_plane_is_said_once() -> None:
    line = headline(told(reasons=("1 volume failed",), failed_volume_count=1), NOW_MS)

    assert 1 == line.text.count("1 volume failed")


def test_a_control_plane_in_trouble_is_said_first() -> None:
    """A control plane that cannot write its state repairs nothing, whatever it counts."""
    line = headline(
        told(reasons=("the control plane: cannot write the state: its database is full",)), NOW_MS
    )

    assert line.text.startswith("the control plane: cannot write the state: its database is full; ")
    assert (False, False) == (line.is_well, ALL_CLEAR in line.text)


def test_headline_of_an_empty_cluster_is_healthy() -> None:
    """A new datanode or a new cluster has nothing to verify."""
    line = headline(DataStatus(asked_count=1), NOW_MS)

    assert ("no closed container holds data yet", True) == (line.text, line.is_well)


def test_headline_without_answers_says_nothing_of_data() -> None:
    """The headline does not say that there is no data, and names some of the silent datanodes."""
    silent = ("0123456789", "b", "c", "d")
    line = headline(DataStatus(asked_count=4, silent=silent), NOW_MS)

    assert "4 of 4 datanodes do not answer (01234567, b, c, ...)" == line.text
    assert not line.is_well


def test_a_node_that_has_left_for_good_need_not_be_heard() -> None:
    """The node may be switched off. A node in maintenance still has replicas that count."""
    nodes = [
        scm_pb2.NodeInfo(datanode_id=name, op_state=state)
        for name, state in (
            ("a", "DECOMMISSIONED"),
            ("b", "IN_MAINTENANCE"),
            ("c", "IN_SERVICE"),
            ("d", "IN_SERVICE"),
        )
    ]

    assert ["b", "c"] == unreachable_nodes(nodes, [False, False, False, True])
