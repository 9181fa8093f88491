"""A delete names who has what goes: without a name nobody is asked, and the last bytes may go."""

from dataclasses import replace
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.state.entities import Container, ContainerState, Replica
from tests.support.control.obeying_nodes import cluster
from tests.support.control.scm_world import container, replica

CLOSED, QUASI, BAD = ReplicaState.CLOSED, ReplicaState.QUASI_CLOSED, ReplicaState.UNHEALTHY
STUCK = container(ContainerState.QUASI_CLOSED, sequence_id=6)
CODED = replace(container(replication_factor=5), scheme="rs-3-2-1024k")


def of_origin(origin: str, *held: Replica) -> list[Replica]:
    """Return replicas of writes that one datanode took."""
    return [replace(one, origin_datanode_id=origin) for one in held]


def quasi(*nodes: str, bcsid: int = 5, root: int = 7) -> list[Replica]:
    """Return equal quasi-closed replicas."""
    return [replica(node, QUASI, bcsid=bcsid, root=root) for node in nodes]


def named(
    path: Path, box: Container, *held: Replica, node_count: int = 6, acknowledged_bcsid: int = 6
) -> dict[str, set[str]]:
    """Return whom the deletes name that are sent within two minutes, by who deletes."""
    with cluster(
        path, box, *held, node_count=node_count, acknowledged_bcsid=acknowledged_bcsid
    ) as made:
        made.pass_time(120)
        assert [] == made.refused()
        return made.witnesses


class TestQuasiClosed:
    def test_surplus_replica_of_an_origin_has_its_equals_as_witnesses(self, tmp_path: Path) -> None:
        """All of them may have lost bytes since their reports, so one that proves is needed."""
        held = of_origin("dn1", *quasi("dn1", "dn2", "dn3", "dn4"))

        [(victim, witnesses)] = named(tmp_path, STUCK, *held).items()

        assert {"dn1", "dn2", "dn3", "dn4"} - {victim} == witnesses

    def test_a_stale_one_names_who_has_all_of_it_and_none_that_differs(
        self, tmp_path: Path
    ) -> None:
        """A replica of another origin with other blocks can prove nothing, and each time would
        be read for nothing.
        """
        held = of_origin("dn1", *quasi("dn1", "dn2", "dn3", bcsid=5), *quasi("dn4", bcsid=4))
        other = of_origin("dn5", *quasi("dn5", "dn6", bcsid=4, root=8))

        assert {"dn4": {"dn1", "dn2", "dn3"}} == named(tmp_path, STUCK, *held, *other)

    def test_a_damaged_one_names_who_has_its_origins_commits(self, tmp_path: Path) -> None:
        """Its whole blocks may be the last ones, and only a replica with as many commits can
        have them all.
        """
        held = of_origin("dn1", *quasi("dn1", "dn2", "dn3"), replica("dn4", BAD, root=9))
        other = of_origin("dn5", *quasi("dn5", "dn6", root=8))

        assert {"dn1", "dn2", "dn3"} == named(tmp_path, STUCK, *held, *other)["dn4"]

    def test_a_damaged_one_that_gives_way_names_them_too(self, tmp_path: Path) -> None:
        """Three datanodes, each with a replica: it is deleted before the copy is made."""
        held = of_origin("dn1", *quasi("dn1", "dn2"), replica("dn3", BAD, bcsid=4, root=9))

        assert {"dn3": {"dn1", "dn2"}} == named(tmp_path, STUCK, *held, node_count=3)

    def test_replica_with_fewer_commits_is_no_witness(self, tmp_path: Path) -> None:
        """The replica is of the damaged replica's origin, but was copied before the last commit."""
        held = of_origin(
            "dn1",
            *quasi("dn1", "dn2", "dn3"),
            *quasi("dn4", bcsid=3, root=3),
            replica("dn5", BAD, root=9),
        )

        assert {"dn1", "dn2", "dn3"} == named(tmp_path, STUCK, *held)["dn5"]


class TestClosed:
    @pytest.mark.parametrize(("state", "bcsid"), [(QUASI, 5), (QUASI, 4), (BAD, 5), (BAD, 4)])
    def test_unclosed_replica_has_the_whole_ones_as_witnesses(
        self, tmp_path: Path, state: ReplicaState, bcsid: int
    ) -> None:
        """The unclosed replica has the same commits or fewer."""
        whole = [replica(node) for node in ("dn1", "dn2", "dn3")]
        held = [*whole, replica("dn4", state, bcsid=bcsid, root=9)]

        found = named(tmp_path, container(), *held, acknowledged_bcsid=5)

        assert {"dn4": {"dn1", "dn2", "dn3"}} == found


class TestShards:
    def test_shards_that_missed_a_commit_are_each_others_witness(self, tmp_path: Path) -> None:
        """The last shard is to be rebuilt in its place. Until then only its equal has the cells."""
        held = [replica(f"dn{i}", replica_index=i, root=100 + i) for i in range(1, 5)]
        behind = [
            replica(node, QUASI, replica_index=5, bcsid=4, root=105) for node in ("dn5", "dn6")
        ]

        found = named(tmp_path, CODED, *held, *behind, acknowledged_bcsid=5)

        assert found in ({"dn5": {"dn6"}}, {"dn6": {"dn5"}})

    def test_unique_bad_shard_has_no_witnesses(self, tmp_path: Path) -> None:
        """The shard is computed from the others, and no single datanode could prove it."""
        held = [replica(f"dn{i}", replica_index=i, root=100 + i) for i in range(1, 5)]
        bad = replica("dn5", BAD, replica_index=5, root=105)

        found = named(tmp_path, CODED, *held, bad, node_count=5, acknowledged_bcsid=5)

        assert {"dn5": set()} == found
