"""The one line that says whether the data is whole: every combination of what may be the matter."""

from dataclasses import fields
from itertools import product

import pytest

from agent.observe.status_headline import Answer, Containers, headline, silent_of
from agent.rpc.v1 import scm_pb2

NOW_MS = 1_800_000_000_000
WORDS = {  # what must be said when there are so many: written down here, not computed
    "lost": ("1 container without a whole replica", "7 containers without a whole replica"),
    "contradict": (
        "1 container whose replicas contradict each other",
        "7 containers whose replicas contradict each other",
    ),
    "damaged": ("1 container with damaged replicas", "7 containers with damaged replicas"),
    "differ": ("1 container whose replicas differ", "7 containers whose replicas differ"),
    "few": ("1 container with too few replicas", "7 containers with too few replicas"),
    "unknown": ("1 container not compared yet", "7 containers not compared yet"),
}
ALL_CLEAR = "nothing is damaged"


def told(**facts: object) -> Answer:
    """Return what is known where all is well, but for `facts`."""
    well: dict[str, object] = {
        "asked_count": 3,
        "data_bytes": 1000,
        "in_time_bytes": 1000,
        "interval_s": 604_800.0,
        "oldest_at_ms": NOW_MS - 60_000,
        "oldest_on": "/vol1",
    }
    return Answer(**(well | facts))  # type: ignore[arg-type]


def test_all_is_well() -> None:
    """
    Then, and only then, it is said that nothing is damaged.
    """
    line = headline(told(), NOW_MS)

    assert line.is_well
    assert (
        "100 % of bytes verified within 7 d; oldest 60 s on /vol1; nothing is damaged; "
        "nothing is due" == line.text.replace("1 min on", "60 s on")
    )


def test_every_combination() -> None:
    """
    Silent nodes, six kinds of containers, contradictory replicas, failed volumes, stalled workers,
    findings, no bytes: whatever is the matter is said, and nothing is claimed beside. Bytes whose
    turn has not come are said, and are nothing to do.
    """
    names = [field.name for field in fields(Containers)]
    assert set(WORDS) == set(names)
    seen = 0
    for silent, counts, troubles, findings, share in product(
        ((), ("aaaaaaaa-1",), ("aaaaaaaa-1", "b", "c")),
        product((0, 1), repeat=len(names)),
        product((0, 1), repeat=3),
        (0, 1, 2),
        ((0, 0), (999, 1000), (1000, 1000)),
    ):
        containers = Containers(**dict(zip(names, counts, strict=True)))
        contradictory, failed, stalled = troubles
        line = headline(
            told(
                silent=silent,
                containers=containers,
                contradictory_count=contradictory,
                failed_volume_count=failed,
                stalled_worker_count=stalled,
                finding_count=findings,
                in_time_bytes=share[0],
                data_bytes=share[1],
            ),
            NOW_MS,
        )
        is_wrong = bool(silent or any(counts) or any(troubles) or findings)

        assert (not is_wrong) == line.is_well, line.text
        assert (ALL_CLEAR in line.text) == (not is_wrong and share[1] > 0), line.text
        for name, count in zip(names, counts, strict=True):
            assert (WORDS[name][0] in line.text) == bool(count), line.text
        assert (f"{len(silent)} of 3 datanodes were not heard" in line.text) == bool(silent)
        assert ("contradict" in line.text) == bool(contradictory or containers.contradict)
        assert ("1 volume failed" in line.text) == bool(failed)
        assert ("1 worker stalled" in line.text) == bool(stalled)
        assert ("repair" in line.text) == bool(findings)
        assert ("100 %" in line.text) == (share == (1000, 1000))
        if silent:
            assert line.text.startswith(f"{len(silent)} of 3")
            assert "of bytes verified" not in line.text
        seen += 1
    assert 3 * 64 * 8 * 3 * 3 == seen


@pytest.mark.parametrize("name", list(WORDS))
def test_many_are_counted(name: str) -> None:
    """
    In the plural.
    """
    assert WORDS[name][1] in headline(told(containers=Containers(**{name: 7})), NOW_MS).text


def test_a_control_plane_in_trouble_is_said_first() -> None:
    """
    One that cannot write its state repairs nothing, whatever it counts.
    """
    line = headline(told(troubles=("the state is full",)), NOW_MS)

    assert line.text.startswith("the control plane: the state is full; ")
    assert (False, False) == (line.is_well, ALL_CLEAR in line.text)


def test_who_has_nothing_yet_is_well() -> None:
    """
    A new datanode, or a new cluster, has nothing to verify, and that is no trouble.
    """
    line = headline(Answer(asked_count=1), NOW_MS)

    assert ("no closed container holds data yet", True) == (line.text, line.is_well)


def test_when_nobody_was_heard_nothing_is_said_of_data() -> None:
    """
    Not even that there is none; and some of the silent ones are named.
    """
    silent = ("0123456789", "b", "c", "d")
    line = headline(Answer(asked_count=4, silent=silent), NOW_MS)

    assert "4 of 4 datanodes were not heard (01234567, b, c, ...)" == line.text
    assert not line.is_well


def test_a_node_that_has_left_for_good_need_not_be_heard() -> None:
    """
    It may be switched off; one in maintenance still has replicas that count.
    """
    nodes = [
        scm_pb2.NodeInfo(datanode_id=name, op_state=state)
        for name, state in (
            ("a", "DECOMMISSIONED"),
            ("b", "IN_MAINTENANCE"),
            ("c", "IN_SERVICE"),
            ("d", "IN_SERVICE"),
        )
    ]

    assert ["b", "c"] == silent_of(nodes, [False, False, False, True])
