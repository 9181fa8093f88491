"""The planner's decisions, as transcripts and as laws."""

from pathlib import Path

import pytest

from agent.plan.actions import PeerView, RepairBlock, RepairPlan, Skip, SkipReason, WantedChunk
from agent.plan.reconcile_plan import plan
from merkle.diff import diff
from merkle.replica import BlockId, ContainerId
from scanner.finding import DamageFault, ScanFinding, Verdict
from tests.support.reconcile_scenario import answer, read
from tests.support.storage.trees import bad, good, leaf_tree
from tests.support.transcript import check_transcript

GOLDEN = Path(__file__).parents[3] / "golden" / "reconcile"


class TestScenarios:
    @pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("*.txt")))
    def test_plan_is_as_written(self, name: str, request: pytest.FixtureRequest) -> None:
        """Every scenario in tests/golden/reconcile gives the recorded answer."""
        rewrite = bool(request.config.getoption("--rewrite-golden"))

        count = check_transcript(GOLDEN / name, answer, rewrite=rewrite)

        assert count > 0


class TestLaws:
    def test_load_is_spread_over_equal_sources(self) -> None:
        """Two peers that both have everything each serve about half."""
        blocks = " ; ".join(f"{block}: 0+4M=aaaa" for block in range(1, 101))

        planned, _ = read([f"peer dn2 {blocks}", f"peer dn3 {blocks}"])

        firsts = [
            chunk.sources[0]
            for action in planned.actions
            if isinstance(action, RepairBlock)
            for chunk in action.chunks
        ]
        assert 50 == firsts.count("dn2") == firsts.count("dn3")

    def test_only_contradictions_wait_for_a_person(self) -> None:
        """No other reason to skip a block waits for an operator."""
        lasting = {reason for reason in SkipReason if Skip(BlockId(1), 0, reason).is_contradiction}

        assert {SkipReason.CONTRADICTORY, SkipReason.UNCONFIRMED_DELETE} == lasting

    def test_plan_without_rows_and_holders_relies_on_the_peers_alone(self) -> None:
        """Without rows, holders and deletes, only the peers are known."""
        mine, theirs = leaf_tree({1: [bad(0, 1)], 2: []}), leaf_tree({1: [good(0, 2)]}, {2: 7})

        planned = plan(mine, [PeerView("dn2", theirs, diff(mine, theirs))])

        wanted = WantedChunk(good(0, 2), "CORRUPT_CHUNK", ("dn2",))
        assert (RepairBlock(BlockId(1), (wanted,), ("dn2",)),) == planned.actions
        assert (Skip(BlockId(2), -1, SkipReason.UNCONFIRMED_DELETE, ("dn2",)),) == planned.skips
        assert frozenset() == planned.covered_peers

    def test_a_delete_and_a_file_to_look_at_want_no_bytes(self) -> None:
        """Only chunks are fetched."""
        planned, _ = read(["mine 1: 0+4M=aaaa", "peer dn2 1: deleted=7", "ordered 1"])

        assert 1 == len(planned.actions)
        assert 0 == planned.fetch_bytes_max

    def test_a_doubt_about_this_host_is_no_damage(self) -> None:
        """The medium is right, so nothing is to repair and nothing is missing."""
        tree = leaf_tree({1: [good(0, 1)]})
        doubt = ScanFinding(
            ContainerId(7),
            Verdict.SUSPECT_HOST,
            DamageFault.CHUNK_CHECKSUM,
            BlockId(1),
            0,
            10,
            0,
            "why",
        )

        assert RepairPlan() == plan(tree, [], [doubt])

    def test_wanted_bytes_are_those_of_the_damage(self) -> None:
        """Healthy chunks are not fetched."""
        planned, _ = read(
            [
                "mine 1: 0+4M=aaaa 4M+4M=bbbb! 8M+1M=cccc",
                "peer dn2 1: 0+4M=aaaa 4M+4M=bb 8M+1M=cccc",
            ]
        )

        assert 4 * 1024**2 == planned.fetch_bytes_max

    def test_many_chunks_are_planned_in_order_and_time(self) -> None:
        """A block of very many chunks is planned without quadratic work."""
        chunks = " ".join(f"{offset * 512}+512=aaaa" for offset in range(20_000))

        planned, _ = read([f"peer dn2 1: {chunks}"])

        [action] = planned.actions
        assert isinstance(action, RepairBlock)
        assert 20_000 == len(action.chunks)
