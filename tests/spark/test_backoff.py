"""What the run before this one said, and runs over the containers of changed nodes only."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_verify.errors import RunConflict, SnapshotRefused
from spark_verify.exits import Exit
from spark_verify.pipeline import Request, Result, verify
from tests.support.verification.snapshots import AS_OF_MS, SnapshotRows, container, gather


def divergent() -> SnapshotRows:
    return gather(
        [container(1, "R CLOSED 10", "C=7x2 C=9"), container(2, "R CLOSED 10", "C=7 C=8 C=9")]
    )


def test_a_divergence_that_no_repair_moves_is_asked_ever_more_rarely(
    tmp_path: Path, here_rows: int
) -> None:
    """
    Planned while it is new; backed off and named once the same roots come back a fourth time.
    """
    plans, backed_off = [], []
    for number in range(4):
        rows = divergent()
        if number == 3:  # somebody repaired container 1 into another divergence
            rows.replicas[2] = container(1, "R CLOSED 10", "C=7x2 C=5").replicas[2]
        snapshot = rows.write(tmp_path / f"s{number}", manifest={"as_of_ms": AS_OF_MS + number})
        request = Request(str(snapshot), tmp_path / "out", f"r{number}", here_rows=here_rows)
        result = verify(request)
        table = pq.read_table(result.table("reconcile_plan")).to_pylist()
        plans.append(sorted(row["container_id"] for row in table))
        backed_off.append(result.summary["no_progress"])

    assert plans == [[1, 2], [1, 2], [1, 2], [1]]
    assert backed_off == [[], [], [], [2]]
    assert result.summary["previous"]["run_id"] == "r2"


@pytest.fixture(scope="module")
def partial(tmp_path_factory: pytest.TempPathFactory) -> tuple[Request, Result]:
    """A cluster with lost data, verified as far as one sound node's container goes."""
    directory = tmp_path_factory.mktemp("partial")
    parts = [container(1, "R CLOSED 10", "U=7x3"), container(2, "R CLOSED 10", "C=7x3")]
    snapshot = gather(parts).write(directory / "snapshot")
    request = Request(str(snapshot), directory / "out", changed_nodes=("dn-2-1",))
    return request, verify(request)


class TestPartial:
    """A run over the containers of changed nodes only."""

    def test_it_judges_their_containers_only_and_says_so(
        self, partial: tuple[Request, Result]
    ) -> None:
        """
        The others are not even in the result, which is called partial wherever it is read.
        """
        _, result = partial

        health = pq.read_table(result.table("health")).to_pylist()
        html = (result.directory / "report.html").read_text()
        scope = "Only the 1 of 2 containers with a replica on dn-2-1 were verified"
        assert [row["container_id"] for row in health] == [2]
        assert (result.summary["containers"], result.summary["exit_code"]) == (1, 0)
        assert result.summary["is_partial"]
        assert result.summary["text_report"].startswith("PARTIAL ")
        assert scope in result.summary["text_report"]
        assert ">partial: clean<" in html
        assert scope in html

    def test_the_full_run_of_the_same_snapshot_is_another_run(
        self, partial: tuple[Request, Result]
    ) -> None:
        """
        It does not return what was found on one node, and each can be had again.
        """
        request, result = partial

        full = verify(replace(request, changed_nodes=()))

        assert full.summary["exit_code"] == Exit.DATA_AT_RISK
        assert not full.summary["is_partial"]
        assert verify(request) == result
        assert verify(replace(request, changed_nodes=())) == full

    def test_a_run_id_names_one_question(self, partial: tuple[Request, Result]) -> None:
        """
        Asked for under the partial run's id, the full run is refused, and what differs is named.
        """
        request, result = partial
        run_id = result.summary["run_id"]

        with pytest.raises(RunConflict, match="changed nodes: dn-2-1 there, none here") as raised:
            verify(replace(request, changed_nodes=(), run_id=run_id))

        assert "--run-id" in raised.value.hint

    def test_a_node_that_nobody_knows_is_refused(self, partial: tuple[Request, Result]) -> None:
        """
        Its containers are none: that is no clean result but a slip of the pen.
        """
        request, _ = partial

        with pytest.raises(SnapshotRefused, match="nodes/ lists no datanode dn-2-9"):
            verify(replace(request, changed_nodes=("dn-2-1", "dn-2-9")))

    @pytest.mark.spark
    @pytest.mark.usefixtures("spark")
    def test_spark_finds_the_same(self, partial: tuple[Request, Result], tmp_path: Path) -> None:
        """
        On the changed nodes, and of them only.
        """
        request, result = partial

        there = verify(replace(request, out=tmp_path, here_rows=0))

        assert result.summary == there.summary
