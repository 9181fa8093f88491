"""Who is to blame: the statistic alone, over votes that are counted by hand."""

import math
from typing import Any

import numpy as np
import pytest

from health.blame import Suspect, chance_text, suspects, tail_log10


def chance_of(lost: int, expected: float, shape: float) -> float:
    """Return the chance of so many losses or more where the rate is drawn from a gamma
    distribution, as the sum of its terms."""
    p = shape / (shape + expected)
    below = 0.0
    for k in range(lost):
        term = math.lgamma(k + shape) - math.lgamma(shape) - math.lgamma(k + 1)
        below += math.exp(term + shape * math.log(p) + k * math.log1p(-p))
    return 1 - below


class Votes:
    """Nodes of four volumes, ten to a rack, each exposed to a thousand votes and one lost."""

    def __init__(self, nodes: int = 40, volumes: int = 4) -> None:
        self.nodes = [
            {"datanode_id": f"dn{i}", "rack": f"/r{i // 10}", "version": f"1.{i % 2}"}
            for i in range(nodes)
        ]
        self.rows = {
            (f"dn{i}", f"v{v}", ""): [1000, 1] for i in range(nodes) for v in range(volumes)
        }

    def lose(self, lost: int, *, node: int, volumes: str = "v0", against: str = "") -> None:
        """Set what some volumes of a node lost."""
        for volume in volumes.split():
            self.rows.setdefault((f"dn{node}", volume, against), [1000, 0])[1] = lost

    def named(self) -> list[tuple[str, str]]:
        """Return who is named."""
        return [(found.attribute, found.value) for found in self.found()]

    def found(self) -> list[Suspect]:
        """Return who is named, and why."""
        names = ("datanode_id", "volume_id", "against", "exposed", "lost")
        rows: list[dict[str, Any]] = [
            dict(zip(names, (*key, *counts), strict=True)) for key, counts in self.rows.items()
        ]
        return suspects(rows, self.nodes)


ALL = "v0 v1 v2 v3"


class TestChance:
    """A bound on the chance of accident."""

    @pytest.mark.parametrize("lost", [1, 3, 8, 20, 60])
    @pytest.mark.parametrize(("expected", "shape"), [(0.1, 0.5), (0.5, 6.0), (5.0, 2.5)])
    def test_chance_bound_is_at_least_the_exact_sum(
        self, lost: int, expected: float, shape: float
    ) -> None:
        """The bound is not much larger than the sum of all terms."""
        exact = chance_of(lost, expected, shape)

        bound = 10 ** float(
            tail_log10(np.array([float(lost)]), np.array([expected]), np.array([shape]))[0]
        )

        assert exact <= bound * (1 + 1e-9) + 1e-12
        assert bound <= max(40 * exact, 1e-12)

    def test_expected_losses_have_chance_one(self) -> None:
        """At or below the mean, the chance is called one."""
        lost, expected = np.array([0.0, 5.0]), np.array([5.0, 5.0])

        assert [0.0, 0.0] == tail_log10(lost, expected, np.array([4.0, 4.0])).tolist()


class TestNobody:
    """Where nobody is named."""

    def test_evenly_spread_losses_blame_nobody(self) -> None:
        """
        Everybody has one, one has four: that is what accident looks like.
        """
        votes = Votes()
        votes.lose(4, node=3)

        assert votes.named() == []

    def test_disks_differ_without_being_broken(self) -> None:
        """A disk may lose twice as often as others, however often that is."""
        votes = Votes()
        for node in range(40):
            for volume in ALL.split():
                votes.lose(100 + node, node=node, volumes=volume)
        votes.lose(250, node=9)

        assert votes.named() == []

    def test_no_votes_blame_nobody(self) -> None:
        """
        A cluster of erasure-coded containers only has none.
        """
        assert suspects([], [{"datanode_id": "dn0", "rack": "/r0", "version": "1"}]) == []

    def test_with_one_value_only_there_is_nobody_to_compare_with(self) -> None:
        """
        Everybody is in one rack and loses much: it is not the rack.
        """
        votes = Votes(10)
        for node in range(10):
            votes.lose(400, node=node, volumes=ALL)
        for node in votes.nodes:
            node["version"] = "1"

        assert votes.named() == []


class TestSomebody:
    """Where somebody is, and nobody beside."""

    def test_a_bad_volume_is_not_its_node(self) -> None:
        """
        Its node, rack and version lose much through it alone.
        """
        votes = Votes()
        votes.lose(300, node=7)

        assert votes.named() == [("volume", "dn7 v0")]

    def test_a_bad_node_is_not_each_of_its_volumes(self) -> None:
        """The node is blamed, and not its volumes or its rack. The loss of each volume is that
        of the node.
        """
        votes = Votes()
        votes.lose(80, node=7, volumes=ALL)

        assert votes.named() == [("datanode", "dn7")]

    def test_a_bad_rack_is_not_each_of_its_nodes(self) -> None:
        """
        All ten of it do badly, and no other.
        """
        votes = Votes()
        for node in range(10, 20):
            votes.lose(40, node=node, volumes=ALL)

        assert votes.named() == [("rack", "/r1")]

    def test_four_bad_nodes_are_not_their_rack(self) -> None:
        """
        The better half of the rack does as well as everybody.
        """
        votes = Votes()
        for node in range(10, 14):
            votes.lose(12, node=node, volumes=ALL)

        assert sorted(votes.named()) == [("datanode", f"dn{i}") for i in range(10, 14)]

    def test_a_volume_within_a_node_within_a_rack_within_a_version(self) -> None:
        """Each is compared with its container, which is bad itself, and the excess is shown."""
        votes = Votes()
        for node in range(1, 40, 2):
            votes.lose(10, node=node, volumes=ALL)
        for node in range(10, 20):
            votes.lose(60, node=node, volumes=ALL)
        votes.lose(400, node=12, volumes=ALL)
        votes.lose(500, node=34)

        found = {(one.attribute, one.value): one for one in votes.found()}

        assert set(found) == {
            ("version", "1.1"),
            ("rack", "/r1"),
            ("datanode", "dn12"),
            ("volume", "dn34 v0"),
        }
        assert 6 < found["datanode", "dn12"].times_expected < 7
        assert found["version", "1.1"].lost == 15 * 4 * 10, "those that nothing else explains"

    def test_twenty_bad_volumes_do_not_hide_each_other(self) -> None:
        """
        All lose more than the cluster does on the average, of which they are the greater part.
        """
        votes = Votes()
        bad = [node for node in range(40) if node % 4 < 2]  # half of each rack and version
        for node in bad:
            votes.lose(25, node=node)

        assert sorted(votes.named()) == sorted(("volume", f"dn{i} v0") for i in bad)

    def test_the_only_volume_of_a_node_is_the_node(self) -> None:
        """The two cannot be distinguished, and an operator looks for a node."""
        votes = Votes(volumes=1)
        votes.lose(300, node=7)

        assert votes.named() == [("datanode", "dn7")]

    def test_a_rack_that_alone_runs_a_version_is_told_with_it(self) -> None:
        """Either the rack or the version is to blame."""
        votes = Votes()
        for i, node in enumerate(votes.nodes):
            node["version"] = "2.0" if 10 <= i < 20 else "1.0"
        for node in range(10, 20):
            votes.lose(50, node=node, volumes=ALL)

        assert votes.named() == [("rack or version", "/r1 or 2.0")]


class TestVersions:
    """Two versions, of which one writes another tree of the same bytes."""

    def test_version_that_loses_only_alone_may_be_right(self) -> None:
        """A few nodes of another version lose to all others, and not beside each other."""
        votes = Votes()
        for i, node in enumerate(votes.nodes):
            node["version"] = "1.1" if i % 8 == 0 else "1.0"
        for node in range(0, 40, 8):
            votes.lose(300, node=node, volumes=ALL, against="1.0")

        assert votes.named() == [("versions", "1.0 or 1.1")]

    def test_version_that_loses_in_any_company_is_blamed(self) -> None:
        """Random damage does not depend on the neighbours."""
        votes = Votes()
        for i, node in enumerate(votes.nodes):
            node["version"] = "1.1" if i % 4 == 0 else "1.0"
        for node in range(0, 40, 4):
            votes.lose(100, node=node, volumes=ALL)
            votes.lose(100, node=node, volumes=ALL, against="1.0")

        assert votes.named() == [("version", "1.1")]

    def test_a_bad_node_that_stands_alone_is_not_its_version(self) -> None:
        """
        The others of its version lose nothing, against whomever they stand.
        """
        votes = Votes()
        for i, node in enumerate(votes.nodes):
            node["version"] = "1.1" if i % 8 == 0 else "1.0"
        for node in range(0, 40, 8):
            votes.lose(1, node=node, volumes=ALL, against="1.0")
        votes.lose(300, node=16, volumes=ALL, against="1.0")

        assert votes.named() == [("datanode", "dn16")]


def test_chances_are_words_a_person_reads() -> None:
    """
    Small ones as powers of ten.
    """
    assert [chance_text(x) for x in (-3.0, -40.2)] == ["1 in 1,000", "1 in 10^40"]
