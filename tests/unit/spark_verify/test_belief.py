"""A snapshot that is too old, or of a cluster that is mostly silent, is refused without Spark."""

import json
from pathlib import Path

import pytest

from spark_verify.errors import SnapshotRefused
from spark_verify.options import VerifyOptions
from spark_verify.pipeline import VerifyRequest, verify
from spark_verify.snapshot.checks import check_age, check_reporting
from spark_verify.snapshot.manifest import SnapshotManifest

MANIFEST = {
    "schema_version": 5,
    "snapshot_id": "s",
    "as_of_ms": 5_000,
    "term": 1,
    "cluster_id": "c",
    "rows": {"containers": 1, "replicas": 2, "nodes": 3, "pending_ops": 0},
}

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def node(
    name: str,
    health: str = "HEALTHY",
    op_state: str = "IN_SERVICE",
    *,
    has_reported: bool = True,
) -> dict[str, object]:
    return {
        "datanode_id": name,
        "health": health,
        "op_state": op_state,
        "has_reported": has_reported,
    }


class TestAge:
    """The instant of the snapshot against the clock."""

    @pytest.mark.parametrize(("max_age_s", "now_ms"), [(0, 10**15), (60, 65_000), (60, 0)])
    def test_a_snapshot_young_enough_passes(self, max_age_s: int, now_ms: int) -> None:
        """
        No limit, exactly at the limit, and a clock that is behind.
        """
        check_age(SnapshotManifest(1, "s", 5_000, 1, "c", {}), max_age_s, now_ms)

    def test_a_stale_snapshot_is_refused_with_its_age(self) -> None:
        """One second beyond the limit is too old."""
        with pytest.raises(SnapshotRefused, match="snapshot s is 61 s old, at most 60 s"):
            check_age(SnapshotManifest(1, "s", 5_000, 1, "c", {}), 60, 66_000)

    def test_a_snapshot_from_the_future_is_refused(self) -> None:
        """
        An hour of difference between clocks is let pass, whatever age is allowed.
        """
        check_age(SnapshotManifest(2, "s", 3_600_000, 1, "c", {}), 0, 0)

        with pytest.raises(SnapshotRefused, match="snapshot s was made 3601 s in the future"):
            check_age(SnapshotManifest(2, "s", 3_601_000, 1, "c", {}), 0, 0)

    def test_the_job_asks_before_it_starts_spark_and_leaves_nothing(self, tmp_path: Path) -> None:
        """The snapshot has no tables at all, and the error is about its age."""
        (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST))

        with pytest.raises(SnapshotRefused, match="s old, at most 3600 s are allowed"):
            verify(
                VerifyRequest(
                    str(tmp_path), tmp_path / "out", options=VerifyOptions(max_age_s=3600)
                )
            )

        assert not (tmp_path / "out").exists()


class TestReporting:
    """The share of nodes that answer."""

    @pytest.mark.parametrize(
        "nodes",
        [
            [],
            [node("a"), node("b", "STALE")],
            [node("a", "HEALTHY_READONLY"), node("b", "DEAD")],
            [node("a"), *[node(f"m{i}", "DEAD", "IN_MAINTENANCE") for i in range(5)]],
            [node("a"), *[node(f"d{i}", "DEAD", "DECOMMISSIONED") for i in range(5)]],
        ],
        ids=["no nodes", "half stale", "half dead", "maintenance", "decommissioned"],
    )
    def test_enough_nodes_pass(self, nodes: list[dict[str, object]]) -> None:
        """Half is enough, and a node that may be silent does not count."""
        check_reporting(nodes, VerifyOptions().reporting_min_percent)

    def test_a_mostly_silent_cluster_is_refused_with_the_silent_nodes_named(self) -> None:
        """
        A node that is only leaving must still answer.
        """
        nodes = [node("a"), node("c", "STALE"), node("b", "DEAD", "DECOMMISSIONING")]

        with pytest.raises(SnapshotRefused, match=r"only 1 of 3 nodes .*missing: b, c"):
            check_reporting(nodes, VerifyOptions().reporting_min_percent)

    def test_a_heartbeat_is_no_report(self) -> None:
        """A node that calls without a full report since the start of the control plane says
        nothing about lost replicas.
        """
        nodes = [node("a"), node("b", has_reported=False), node("c", has_reported=False)]

        with pytest.raises(
            SnapshotRefused, match=r"only 1 of 3 nodes .* 50 % are required; missing: b, c"
        ):
            check_reporting(nodes, VerifyOptions().reporting_min_percent)

    def test_the_operator_may_lower_the_share(self) -> None:
        """Zero accepts a cluster without any reporting node."""
        check_reporting([node("a", "DEAD")], 0)
