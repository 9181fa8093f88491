"""The planner's decisions, as transcripts and as laws."""

from pathlib import Path

import pytest

from agent.plan.actions import RepairBlock
from tests.support.reconcile_scenario import answer, read
from tests.support.transcript import check_transcript

GOLDEN = Path(__file__).parents[2] / "golden" / "reconcile"


class TestScenarios:
    @pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("*.txt")))
    def test_plan_is_as_written(self, name: str, request: pytest.FixtureRequest) -> None:
        """Every scenario in tests/golden/reconcile is answered as the file says."""
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

    def test_wanted_bytes_are_those_of_the_damage(self) -> None:
        """What is healthy here is not wanted from anybody."""
        planned, _ = read(
            [
                "mine 1: 0+4M=aaaa 4M+4M=bbbb! 8M+1M=cccc",
                "peer dn2 1: 0+4M=aaaa 4M+4M=bb 8M+1M=cccc",
            ]
        )

        assert 4 * 1024**2 == planned.wanted_bytes

    def test_many_chunks_are_planned_in_order_and_time(self) -> None:
        """A block of very many chunks is planned without quadratic work."""
        chunks = " ".join(f"{offset * 512}+512=aaaa" for offset in range(20_000))

        planned, _ = read([f"peer dn2 1: {chunks}"])

        [action] = planned.actions
        assert isinstance(action, RepairBlock)
        assert 20_000 == len(action.chunks)
