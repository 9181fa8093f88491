"""The one line that says whether the data is whole."""

import pytest

from agent.cli.inspect.status_tables import (
    challenges_line,
    containers_line,
    node_row,
    scm_clock_line,
    shadow_line,
)
from suture.pages.status_headline import Told
from suture.wire.v1 import datanode_pb2, scm_pb2


def test_healthy_cluster_line_counts_whole_containers() -> None:
    """Nothing else is mentioned."""
    counts = scm_pb2.CountContainersResponse(all=2, whole=2)

    line = containers_line(counts)

    assert "2 of 2 closed containers are equal and whole on all replicas; 0 open" == line


def test_every_trouble_is_named() -> None:
    """Lacking, damaged, differing, few and unknown replicas are each named, beside the whole
    ones.
    """
    counts = scm_pb2.CountContainersResponse(
        all=6,
        open=2,
        whole=1,
        faulty=3,
        unhealthy=3,
        differ=2,
        few_replicas=1,
        unknown=4,
        missing_blocks=5,
    )

    line = containers_line(counts)

    assert (
        "1 of 4 closed containers are equal and whole on all replicas; 5 without blocks that "
        "keys need, 3 with damaged replicas, "
        "2 whose replicas differ, 1 with too few replicas, 4 not compared yet; 2 open"
    ) == line


def test_no_container_is_no_trouble() -> None:
    """
    Before the first container there is nothing to be worried about.
    """
    assert "no containers yet" == containers_line(scm_pb2.CountContainersResponse())


def test_challenge_results_are_shown() -> None:
    """The line has the number of challenges, their results and the last time, or says that they
    are off.
    """
    asked = datanode_pb2.Challenges(
        interval_ms=60_000,
        asked_at_ms=1_000_000,
        proven_count=7,
        failed_count=1,
        unanswered_count=2,
    )
    own = datanode_pb2.Challenges(interval_ms=60_000, asked_at_ms=1_000_000, own_count=1)

    lines = [challenges_line(one, 1_120.0) for one in (asked, own)]
    lines.append(challenges_line(datanode_pb2.Challenges(interval_ms=60_000), 1_120.0))
    lines.append(challenges_line(datanode_pb2.Challenges(), 1_120.0))

    assert [
        "challenges: 10 chunks asked of peers, 7 proven, 1 refuted, 2 unanswered; last 2 min ago",
        "challenges: 1 chunks asked of peers, 0 proven, 0 refuted, 0 unanswered, 1 wrong here; "
        "last 2 min ago",
        "challenges: none yet",
        "challenges: off",
    ] == lines


def test_shadow_hashing_state_is_shown() -> None:
    """The line says whether it runs, how many chunks it compared, and in how many scans the two
    differ.
    """
    running = datanode_pb2.ShadowHashing(running=True, compared_count=40, differing_count=2)

    assert [
        "shadow hashing: running, 40 chunks compared, 2 scans differing",
        "shadow hashing: not running, 0 chunks compared, 0 scans differing",
    ] == [shadow_line(one) for one in (running, datanode_pb2.ShadowHashing())]


def test_a_refuted_proof_and_hashes_that_differ_are_remarks_of_their_datanode() -> None:
    """The remarks are visible in the table of all datanodes. A healthy one has no remark."""
    node = scm_pb2.NodeInfo(datanode_id="dn1", address="dn1:9861", health="HEALTHY")
    said = datanode_pb2.StatusResponse(datanode_id="dn1")
    wrong = datanode_pb2.ScrubStatusResponse(
        challenges=datanode_pb2.Challenges(failed_count=2),
        shadow_hashing=datanode_pb2.ShadowHashing(differing_count=3),
    )

    rows = [node_row(node, (said, one)) for one in (wrong, datanode_pb2.ScrubStatusResponse())]

    assert [
        "2 proofs of its peers were refuted; 3 scans held: hashes differ",
        "",
    ] == [row[-1] for row in rows]


def with_clock(offset_ms: int) -> Told:
    """Return the answer of a datanode whose clock is ahead of that of the SCM."""
    status = datanode_pb2.StatusResponse(clock_offset_ms=offset_ms)
    return status, datanode_pb2.ScrubStatusResponse()


@pytest.mark.parametrize(
    ("offset_ms", "expected"),
    [
        (5_000, ""),
        (-5_000, ""),
        (5_001, "its clock is 5 s ahead of the SCM's"),
        (-90_000, "its clock is 1 min 30 s behind the SCM's"),
    ],
)
def test_clock_that_is_more_than_five_seconds_off_is_a_remark(
    offset_ms: int, expected: str
) -> None:
    """The remark has the amount and the direction."""
    node = scm_pb2.NodeInfo(datanode_id="dn1", address="dn1:9861", health="HEALTHY")

    assert expected == node_row(node, with_clock(offset_ms))[-1]


@pytest.mark.parametrize(
    ("offsets_ms", "expected"),
    [
        ([], ""),
        ([6_000], ""),
        ([6_000, 0], ""),
        ([6_000, 6_000, 0, 0], ""),
        ([6_000, -6_000, 6_000, -6_000], ""),
        ([5_000, 5_000], ""),
        ([6_000, 7_000, 0], "6 s or more behind the clocks of 2 of 3 datanodes"),
        ([-9_000, -9_000], "9 s or more ahead of the clocks of 2 of 2 datanodes"),
    ],
)
def test_scm_is_named_when_most_datanodes_differ_from_it_in_one_direction(
    offsets_ms: list[int], expected: str
) -> None:
    """A single datanode, half of them or opposite directions say nothing about the SCM. Datanodes
    that do not answer do not count.
    """
    line = scm_clock_line([*map(with_clock, offsets_ms), "does not answer"])

    assert line == (f"the SCM's clock is {expected}" if expected else "")
