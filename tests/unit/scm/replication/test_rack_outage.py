"""After a rack was dark its containers stand on two racks again, whoever does not come back."""

from pathlib import Path

from merkle.replica import ReplicaState
from scm.state.entities import CommandKind
from tests.support.control.obeying_nodes import OPTIONS, cluster
from tests.support.control.scm_world import container, replica

RACKS = ("/a", "/b")  # in turn: dn1, dn3 and dn5 are on the first


def test_a_host_that_never_comes_back_keeps_its_rack_for_no_copy(tmp_path: Path) -> None:
    """Its recorded replica counts for nothing, and the other datanodes of its rack have room."""
    held = [replica("dn1"), replica("dn3"), replica("dn2")]

    with cluster(tmp_path, container(), *held, node_count=6, racks=RACKS) as made:
        made.nodes = ["dn1", "dn3", "dn5"]
        made.pass_time(OPTIONS.dead_after_ms // 1_000 + 30)
        dark = set(made.held) & set(made.nodes)
        made.nodes += ["dn4", "dn6"]
        made.pass_time(60)

        assert {"dn1", "dn3", "dn5"} == dark
        left = set(made.held) - {"dn2"}
        assert (3, 1) == (len(left), len(left & {"dn4", "dn6"}))
        assert "HEALTHY" == made.world.control.manager.states().of(1)


def test_a_damaged_one_with_more_commits_keeps_its_rack_for_no_copy(tmp_path: Path) -> None:
    """The damaged replica is kept for an operator to inspect. The whole ones are spread as if it
    did not exist.
    """
    held = [replica(node) for node in ("dn1", "dn3", "dn5")]
    bad = replica("dn2", ReplicaState.UNHEALTHY, bcsid=9)

    with cluster(tmp_path, container(), *held, bad, node_count=6, racks=RACKS) as made:
        made.pass_time(60)

        whole = set(made.held) - {"dn2"}
        assert (3, 1) == (len(whole), len(whole & {"dn4", "dn6"}))
        assert ReplicaState.UNHEALTHY is made.held["dn2"].state
        assert [CommandKind.DELETE, CommandKind.REPLICATE] == sorted(
            one.kind
            for one in made.ended
            if one.kind in {CommandKind.DELETE, CommandKind.REPLICATE}
        )
