"""Checksum classes, the vote and eligibility, beyond the vectors, all judged in one batch."""

from tests.support.verification.judged import judged
from tests.support.verification.snapshots import SnapshotRows, container, gather


class TestClasses:
    """What the vectors leave open."""

    VECTORS = (
        ("C=7x2 C=8x2", "MISMATCH_SPLIT"),  # a tie is no majority
        ("C=7x2 C=8 C=9", "MISMATCH_MINORITY"),
        ("C=7 C=9 C=0", "MISMATCH_SPLIT"),  # two known roots differ, the third is no vote
        ("C=7 C=0x2", "PARTIAL"),
        ("C=7x2 C=9~crc32c", "NOT_COMPARABLE"),  # another algorithm is no mismatch
        ("C=7 C=8 C=9~crc32c", "MISMATCH_SPLIT"),  # but hides none either
        ("C=7~crc32c C=9", "NOT_COMPARABLE"),
        ("C!=7x3", "EMPTY"),
        ("C!=7x2 C=9", "MISMATCH_MINORITY"),  # empty here, data there: a divergence
        ("C=7?s C=9?d C=9", "SINGLE"),
        ("C=7?r C=7", "MATCH"),  # a read-only node answers
        ("C=7?s C=9?d", "NOT_COMPARABLE"),
        ("O=7x3", "NOT_COMPARABLE"),
        ("C=-7x2 C=7", "MISMATCH_MINORITY"),  # the sign is a bit of the root like any other
    )

    def test_every_mix_of_roots_has_one_class(self) -> None:
        """
        Ties, unknown roots, other algorithms, empty and unreachable replicas.
        """
        parts = [container(i, "R CLOSED", v[0]) for i, v in enumerate(self.VECTORS)]

        rows = judged(parts)

        found = [(v[0], rows[i].opinion.checksum_class) for i, v in enumerate(self.VECTORS)]
        assert found == list(self.VECTORS)

    EXPLAINED = (
        ("C=7:1 C=8:1x2", "EXPLAINED", set()),
        ("C=7:1 C=8:1 C=8", "MISMATCH_MINORITY", {0}),  # one was not read: it stays what it is
        ("C=7:1 C=8", "MISMATCH_SPLIT", set()),
        ("C=7:1 C=8:2 C=9:2", "MISMATCH_MINORITY", {0}),  # whole reads decide, not trees
        ("C=7:1 C=7:2x2", "MISMATCH_MINORITY", {0}),  # equal trees that leave something out
        ("C=7:1 C=8:1 C=0", "PARTIAL", set()),
        ("C=7:1x3", "MATCH", set()),
        ("C=7:1 C=7x2", "MATCH", set()),
        ("C=7:1 C=8:1 C=9?d", "EXPLAINED", set()),
        ("C=7:1 C=8:1~crc32c", "NOT_COMPARABLE", set()),
    )

    def test_a_difference_is_explained_by_whole_reads_of_all(self) -> None:
        """No replica is in the minority, no flag is set, and nothing is repaired."""
        parts = [container(i, "R CLOSED", v[0]) for i, v in enumerate(self.EXPLAINED)]

        rows = judged(parts)

        found = [rows[i].opinion for i in range(len(self.EXPLAINED))]
        assert [
            (word, {f"dn-{i}-{n}" for n in lost})
            for i, (_, word, lost) in enumerate(self.EXPLAINED)
        ] == [(opinion.checksum_class, set(opinion.minority)) for opinion in found]
        for i, (_, word, _) in enumerate(self.EXPLAINED):
            if word == "EXPLAINED":
                assert not rows[i].is_wanted
                assert () == rows[i].reasons
                assert "ROOTS_DIFFER" not in rows[i].opinion.flags
        assert {"UNREACHABLE_DIFFERS"} <= rows[8].opinion.flags

    def test_damage_beside_an_explained_difference_is_repaired(self) -> None:
        """
        Because of the damage.
        """
        rows = judged([container(1, "R CLOSED", "C=7:1 C=8:1 U=8:1*2")])

        assert "EXPLAINED" == rows[1].opinion.checksum_class
        assert rows[1].is_wanted
        assert ("replica UNHEALTHY", "scan findings") == rows[1].reasons

    def test_shards_of_an_index_are_explained_among_themselves(self) -> None:
        """
        Each index is a contest of its own.
        """
        parts = [
            container(1, "EC CLOSED", "C#1=1:9 C#1=2:9 C#2=2 C#3=3 C#4=4 C#5=5"),
            container(2, "EC CLOSED", "C#1=1:9 C#1=2:9 C#2=2x2 C#2=3 C#3=3 C#4=4 C#5=5"),
        ]

        rows = judged(parts)

        assert {1: "EXPLAINED", 2: "MISMATCH_MINORITY"} == {
            i: row.opinion.checksum_class for i, row in rows.items()
        }

    def test_an_ec_index_is_compared_with_itself_only(self) -> None:
        """
        Duplicated indexes that agree match; one that is not scanned is PARTIAL.
        """
        parts = [
            container(1, "EC CLOSED", "C#1=1x2 C#2=2 C#3=3 C#4=4 C#5=5"),
            container(2, "EC CLOSED", "C#1=1 C#1=0 C#2=2 C#3=3 C#4=4 C#5=5"),
            container(3, "EC CLOSED", "C#1=1x2 C#1=6 C#2=2x2 C#3=3"),
        ]

        rows = judged(parts)

        assert {i: row.opinion.checksum_class for i, row in rows.items()} == {
            1: "MATCH",
            2: "PARTIAL",
            3: "MISMATCH_MINORITY",
        }

    def test_the_vote_names_the_replicas_that_lost(self) -> None:
        """The minority is listed by datanode, and a split vote blames none."""
        parts = [
            container(1, "R CLOSED", "C=7 C=9 C=7"),
            container(2, "R CLOSED", "C=7 C=8 C=9"),
        ]

        rows = judged(parts)

        assert rows[1].opinion.minority == {"dn-1-1"}
        assert rows[2].opinion.minority == set()

    def test_tombstone_sets_that_differ_under_equal_roots_are_seen(self) -> None:
        """
        Orphan data does not change the root, so it is a divergence of its own kind.
        """
        parts = [
            container(1, "R CLOSED", "C=7x2 C=7%5"),
            container(2, "R CLOSED", "C=7%5x3"),
            container(3, "R CLOSED", "C=7 C=8%5"),
        ]

        rows = judged(parts)

        assert {i: row.tombstones_differ for i, row in rows.items()} == {
            1: True,
            2: False,
            3: False,
        }
        assert rows[1].reasons == ("tombstones differ",)

    def test_a_silent_replica_that_said_something_else_is_noted(self) -> None:
        """
        A root on a stale node never makes a mismatch, yet it is not forgotten.
        """
        rows = judged([container(1, "R CLOSED", "C=7x2 C=9?s")])

        assert rows[1].opinion.checksum_class == "MATCH"
        assert rows[1].is_unreachable_different

    def test_the_order_of_rows_changes_nothing(self) -> None:
        """
        The same rows the other way round give the same result.
        """
        rows = gather(
            [
                container(1, "R CLOSED", "C=7 C=9 C=7"),
                container(2, "EC CLOSED", "C#1=1 C#1=2 C#2=3", ops="+#4 -n0"),
            ]
        )
        turned = SnapshotRows(
            rows.containers[::-1], rows.replicas[::-1], rows.nodes[::-1], rows.pending_ops[::-1]
        )

        one = judged([rows])
        other = judged([turned])

        assert one == other


class TestEligibility:
    """Ozone's result codes in Ozone's order; a replica that cannot take part is left out."""

    VECTORS = (
        ("R OPEN", "", "", "INELIGIBLE_CONTAINER_STATE"),  # the state is asked before replicas
        ("R CLOSING", "C x", "", "INELIGIBLE_CONTAINER_STATE"),
        ("R DELETED", "", "", "INELIGIBLE_CONTAINER_STATE"),
        ("R RECOVERING", "C", "", "INELIGIBLE_CONTAINER_STATE"),
        ("R CLOSED", "", "", "NO_REPLICAS_FOUND"),
        ("EC CLOSED", "O#1 G#2", "", "INELIGIBLE_REPLICA_STATES"),  # before the type
        ("R CLOSED", "O G I", "", "INELIGIBLE_REPLICA_STATES"),
        ("EC CLOSED", "O#1 C#2", "", "INELIGIBLE_REPLICATION_TYPE"),
        ("EC CLOSED", "C#1 C#2", "", "INELIGIBLE_REPLICATION_TYPE"),
        ("S1 CLOSED", "C", "", "INELIGIBLE_REPLICATION_TYPE"),
        ("R1 CLOSED", "C", "", "NOT_ENOUGH_REQUIRED_NODES"),
        ("R CLOSED", "C C?s", "", "NOT_ENOUGH_REACHABLE_REPLICAS"),
        ("R CLOSED", "C G", "", "NOT_ENOUGH_REACHABLE_REPLICAS"),
        ("R CLOSED", "C I", "", "NOT_ENOUGH_REACHABLE_REPLICAS"),
        ("R CLOSED", "O C C", "", "OK"),
        ("R CLOSED", "C G U", "", "OK"),
        ("R CLOSED", "C I Q", "", "OK"),
        ("R CLOSED", "C C", "!", "RECONCILE_PENDING"),
        ("R QUASI_CLOSED", "Q U", "+ -", "OK"),
    )

    def test_every_refusal_has_its_code(self) -> None:
        """There is one container for each code. If two codes apply, the earlier one is given."""
        parts = [
            container(i, v[0], v[1].replace(" x", ""), v[2]) for i, v in enumerate(self.VECTORS)
        ]

        rows = judged(parts)

        found = [(*v[:3], rows[i].opinion.eligibility) for i, v in enumerate(self.VECTORS)]
        assert found == list(self.VECTORS)

    def test_a_container_only_replicas_name_is_not_found(self) -> None:
        """A datanode may have a container that the SCM does not know. It is shown and never
        planned.
        """
        orphan = container(5, "R CLOSED", "C=7 C=9")
        orphan.containers.clear()

        rows = judged([container(1, "R CLOSED", "C=7x3"), orphan])

        assert rows[5].opinion.eligibility == "CONTAINER_NOT_FOUND"
        assert not rows[5].is_known
