"""The published vectors of the replication manager that no other test names: closing, deleting,
deciding. `tests/packaging/test_vectors.py` sees that none is lost.

What has no counterpart here: a placement policy that fails as a test wants it (ours counts racks,
and of five replicas on two racks one can always go), and a control plane that is not the leader
(there is one; what an older one still sends is refused by datanodes for its term).
"""

from dataclasses import replace

import pytest

from health.words import HealthState
from merkle.replica import ReplicaState
from scm.api.views import checksums_hint
from scm.cluster.allocate import TargetCandidate
from scm.cluster.commands.command_limits import select_sendable
from scm.cluster.commands.loads import DELETE_LIMIT, load
from scm.cluster.lifecycle import CloseCommand, closes_due, with_observed_state
from scm.replication.reconcile.eligibility import Eligibility, judge
from scm.state.entities import CommandKind, Container, ContainerState, OpState, Replica
from tests.support.control.judged_case import copied as to_copy
from tests.support.control.judged_case import health, lost, needs, obstacle, sources, victims
from tests.support.control.judged_container import JudgedContainer
from tests.support.control.replica_words import case
from tests.support.control.scm_world import container, pending, replica

GIB = 1024**3
STATES = {
    "O": ReplicaState.OPEN,
    "G": ReplicaState.CLOSING,
    "Q": ReplicaState.QUASI_CLOSED,
    "C": ReplicaState.CLOSED,
    "U": ReplicaState.UNHEALTHY,
}
CLOSING, QUASI_CLOSED, CLOSED = (
    ContainerState.CLOSING,
    ContainerState.QUASI_CLOSED,
    ContainerState.CLOSED,
)


def replicas(letters: str, **more: object) -> list[Replica]:
    """Return one replica a letter, on dn1, dn2, ..."""
    found = [replica(f"dn{i + 1}", STATES[letter]) for i, letter in enumerate(letters)]
    return [replace(one, **more) for one in found]  # type: ignore[arg-type]


def shards(words: str) -> JudgedContainer:
    """Read `C#1 U#4 C#5/d`: replicas of an RS(3,2) container with their indexes."""
    pairs = [word.partition("#") for word in words.split()]
    plain = case(" ".join(state + rest[1:] for state, _, rest in pairs))
    placed = tuple(
        replace(p, replica=replace(p.replica, replica_index=int(rest[0])))
        for p, (_state, _, rest) in zip(plain.placed, pairs, strict=True)
    )
    ec = replace(container(replication_factor=5), scheme="rs-3-2-1024k")
    return replace(plain, container=ec, placed=placed)


class TestClosing:
    @pytest.mark.parametrize(
        ("row", "state", "letters", "told"),
        [
            ("W1", CLOSING, "OOO", ["dn1", "dn2", "dn3"]),
            ("W2", CLOSING, "OUO", ["dn1", "dn3"]),
            ("W5", CLOSING, "UUUO", ["dn4"]),
            ("W16", QUASI_CLOSED, "OGU", ["dn1", "dn2"]),
        ],
    )
    def test_close_goes_to_every_writable_replica_without_force(
        self, row: str, state: ContainerState, letters: str, told: list[str]
    ) -> None:
        """UNHEALTHY replicas get no close."""
        orders = closes_due(container(state), replicas(letters))

        assert [CloseCommand(node, 5, force=False) for node in told] == orders, row

    @pytest.mark.parametrize(
        ("row", "letters", "pipeline", "committed", "expected"),
        [
            ("W4: a chosen node may still have a replica", "", ("dn1",), 0, CLOSING),
            ("W4: nobody has one", "", (), 0, ContainerState.DELETED),
            ("W4: nobody has one, but a key says there was data", "", (), 1, CLOSING),
            ("W5", "UUU", (), 1, QUASI_CLOSED),
            ("W5: one can still be closed", "UUUO", (), 1, CLOSING),
        ],
    )
    def test_closing_container_gets_the_state_its_replicas_permit(
        self,
        row: str,
        letters: str,
        pipeline: tuple[str, ...],
        committed: int,
        expected: ContainerState,
    ) -> None:
        """The container does not wait for data that no replica has, and no time is guessed."""
        before = container(CLOSING, pipeline=pipeline, committed_count=committed)

        assert expected is with_observed_state(before, replicas(letters), now_ms=9).state, row


class TestOver:
    def test_w23_an_unhealthy_replica_of_its_own_origin_is_not_victims(self) -> None:
        """Three quasi-closed ones behind, and one that has more but is unhealthy: all stay."""
        given = case("Q@19 Q@19 Q@19 U@20")
        given = replace(given, container=container(QUASI_CLOSED, sequence_id=20))

        assert [] == victims(given)

    @pytest.mark.parametrize(
        ("racks", "cluster_rack_count", "gone"),
        [
            ("aaaa", 3, 1),  # on too few racks before and after: no worse
            ("aabb", 3, 1),
            ("aaab", 2, 1),
        ],
    )
    def test_w28_one_of_four_goes_if_the_racks_are_no_fewer(
        self, racks: str, cluster_rack_count: int, gone: int
    ) -> None:
        """Two racks are wanted; where there were fewer, as many as there were."""
        given = case("C C C C", racks, cluster_rack_count=cluster_rack_count)
        chosen = {p.datanode_id for p in victims(given)}

        left = {p.rack for p in given.placed if p.datanode_id not in chosen}

        assert gone == len(chosen)
        assert min(2, len(set(racks))) == len(left)

    @pytest.mark.parametrize(
        "words",
        [
            "C#1 C#1 C#2 C#3 C#4 C#5?",  # one index is on a node that does not answer
            "C#1 O#1 C#2 C#3 C#4 C#5",  # the second is no copy: it is not closed
        ],
    )
    def test_w40_of_shards_nothing_goes_on_a_guess(self, words: str) -> None:
        """While one index is not known whole, or the twin is none, all stay."""
        assert [] == victims(shards(words))

    def test_w22_an_unhealthy_twin_goes(self) -> None:
        """All indexes are whole without it."""
        assert ["dn6"] == [p.datanode_id for p in victims(shards("C#1 C#2 C#3 C#4 C#5 U#1"))]


VULNERABLE = (
    # row, replicas, is a copy made of the last one named
    ("W17", "Q@9 Q@9 Q@9 U@10/d", True),
    ("W17: on its way into maintenance", "Q@9 Q@9 Q@9 U@10/e", True),
    ("it stays", "Q@9 Q@9 Q@9 U@10", False),
    ("it has no more than others", "Q@9 Q@9 Q@9 U@9/d", False),
    ("its node does not answer", "Q@9 Q@9 Q@9 U@10/d?", False),
    ("it has nothing but others of its kind", "U@9 U@9 U@9 U@10/d", False),
)


class TestVulnerable:
    @pytest.mark.parametrize(("row", "words", "is_copied"), VULNERABLE)
    def test_the_last_commits_do_not_leave_with_a_damaged_replica(
        self, row: str, words: str, is_copied: bool
    ) -> None:
        """The damaged replica is copied as it is, and its node waits for that. Three others have
        less.
        """
        given = replace(case(words), container=container(QUASI_CLOSED, sequence_id=10))

        found = needs(given)

        assert is_copied == (found.health is HealthState.UNHEALTHY_UNDER_REPLICATED), row
        if is_copied:
            assert 1 == found.copies
            assert ["dn4"] == [p.datanode_id for p in sources(given)]
            assert obstacle(given) is not None
            assert 0 == needs(replace(given, adds=("dn9",))).copies

    def test_w19_another_of_the_same_origin_that_stays_is_enough(self) -> None:
        """Its damage is the same: both have what that writer's datanode had."""
        given = replace(
            case("Q@9 Q@9 Q@9 U@10/d U@10"), container=container(QUASI_CLOSED, sequence_id=10)
        )
        origin = [
            replace(p, replica=replace(p.replica, origin_datanode_id="z"))
            if p.replica.state is ReplicaState.UNHEALTHY
            else p
            for p in given.placed
        ]
        alone = health(given)
        together = health(replace(given, placed=tuple(origin)))

        assert alone is HealthState.UNHEALTHY_UNDER_REPLICATED
        assert together is not HealthState.UNHEALTHY_UNDER_REPLICATED


class TestShards:
    def test_w37_what_is_lost_is_named_whole(self) -> None:
        """Two of five: how many targets there are is another question."""
        assert (4, 5) == lost(shards("C#1 C#2 C#3"))

    def test_w38_what_leaves_is_copied_though_nothing_can_be_rebuilt(self) -> None:
        """Two shards and one that leaves: that one is copied, whatever else is lacking."""
        given = shards("C#1 C#2 C#3/d")

        assert [3] == [p.replica.replica_index for p in to_copy(given)]

    @pytest.mark.parametrize(("words", "copied"), [("/m", 1), ("/e", 1), ("", 0)])
    def test_w65_more_redundancy_than_parity_is_never_asked_for(
        self, words: str, copied: int
    ) -> None:
        """Two shards of RS(3,2) are in maintenance. One more than reading needs stays online,
        whatever is configured.
        """
        given = shards(f"C#1{words} C#2{words} C#3 C#4 C#5")

        assert copied == len(to_copy(given))

    def test_w64_a_leaving_shard_may_go_only_when_its_index_stays(self) -> None:
        """Index 1 is on another node, too; index 3 is not."""
        assert obstacle(shards("C#1 C#1/d C#2 C#3/d C#4 C#5"))
        assert not obstacle(shards("C#1 C#1/d C#2 C#3 C#4 C#5"))


class TestThrottles:
    @pytest.mark.parametrize(("reported", "leaving"), [(41, 0), (40, 0), (39, 1), (0, 40)])
    def test_w46_a_datanode_has_at_most_forty_deletes(self, reported: int, leaving: int) -> None:
        """Out of service or not: deletes cost its disks the same."""
        waiting = [pending(number, CommandKind.DELETE) for number in range(1, 51)]

        for op_state in OpState:
            sent = select_sendable(waiting, reported={"delete": reported}, op_state=op_state)
            assert leaving == len(sent)
        busy = load(CommandKind.DELETE, [], reported_count=reported, heard_at_s=0.0)
        assert (busy >= DELETE_LIMIT) is (leaving == 0)

    @pytest.mark.parametrize(
        ("row", "available_gib", "scheduled_gib", "fits"),
        [
            ("30 left, 20 of them spare, 10 promised", 30 - 20, 10, False),
            ("40 left", 40 - 20, 10, True),
            ("what was promised is over", 30 - 20, 0, True),
        ],
    )
    def test_w52_what_is_promised_is_not_promised_again(
        self, row: str, available_gib: int, scheduled_gib: int, fits: bool
    ) -> None:
        """A copy of 5 GiB needs twice that; datanodes report what is left above their reserve."""
        node = TargetCandidate(
            datanode_id="dn1",
            rack="/r",
            capacity_bytes=100 * GIB,
            available_bytes=available_gib * GIB,
            largest_volume_bytes=available_gib * GIB,
            used_bytes=0,
            scheduled_bytes=scheduled_gib * GIB,
        )

        assert fits is node.has_room(2 * 5 * GIB), row


class TestReconcile:
    @pytest.mark.parametrize(
        ("row", "made", "letters", "expected"),
        [
            ("unknown", None, "", Eligibility.CONTAINER_NOT_FOUND),
            ("nobody has it", container(), "", Eligibility.NO_REPLICAS_FOUND),
            (
                "shards of an unknown code",
                container(),
                "CCC#",
                Eligibility.INELIGIBLE_REPLICATION_TYPE,
            ),
            (
                "factor 1",
                container(replication_factor=1),
                "C",
                Eligibility.NOT_ENOUGH_REQUIRED_NODES,
            ),
        ],
    )
    def test_w55_who_is_refused(
        self, row: str, made: Container | None, letters: str, expected: Eligibility
    ) -> None:
        """Shards of a known code are reconciled here, which Ozone refuses."""
        found = replicas(letters.removesuffix("#"), replica_index=letters.count("#"))

        assert expected is judge(made, found, lambda _: True).eligibility, row

    @pytest.mark.parametrize("state", sorted(set(ContainerState) - {CLOSED, QUASI_CLOSED}))
    def test_w56_only_what_is_closed_is_reconciled(self, state: ContainerState) -> None:
        """The content of a container in any other state is not final."""
        found = judge(container(state), replicas("CCC"), lambda _: True)

        assert Eligibility.INELIGIBLE_CONTAINER_STATE is found.eligibility


class TestReports:
    def test_w58_checksums_are_kept_as_reported_and_move_nothing(self) -> None:
        """No checksum is none, not 0; different ones are shown and the state stays."""
        none = replicas("CCC", tree=None)
        different = [replica(f"dn{root}", root=root) for root in (1, 2, 3)]
        before = container()

        for reported in (none, different):
            assert with_observed_state(before, reported, now_ms=9).state is before.state
        assert [None] * 3 == [one.tree for one in none]
        assert ("unknown", "differ") == (checksums_hint(none), checksums_hint(different))
