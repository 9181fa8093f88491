"""`suture ozone reconcile`: the reconcile rows of a plan, against what a real SCM said."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from agent.cli.main import run
from health.tables.snapshot_columns import RESULT_VERSION
from ozone.clients.authentication import HadoopIdentity
from ozone.clients.connection import parse_addresses
from ozone.clients.scm import OzoneScmClient, ScmClientOptions
from ozone.cluster.reconcile import (
    ReconcileOptions,
    ReconcileReport,
    RowOutcome,
    reconcile,
    reconcile_plan,
)
from suture.errors import Code, RefusedError
from suture.runtime.exit_codes import ExitCode
from suture.wire.mapping.plan_file import FinishedRun
from tests.support.ozone.recorded_scm import RecordedScm, recorded_scm
from tests.support.printed_json import document_in
from tests.support.verification.result_files import write_result_table

CLUSTER = "3ae656e7-e14e-41c6-99bb-9487cfe99e40"  # of the recording
NOW_MS = 1_800_000_000_000
QUICK = ScmClientOptions(timeout_s=10, patience_s=1, pause_s=0.01)


@pytest.fixture
def scm() -> Iterator[RecordedScm]:
    """An SCM that leads."""
    with recorded_scm() as server:
        yield server


def finished_run(directory: Path, *rows: dict[str, Any], cluster_id: str = CLUSTER) -> Path:
    """Write what `suture-verify` leaves, as far as a plan is concerned."""
    replica = {"datanode_id": "a", "state": "CLOSED", "root": 1, "tree_algorithm": "crc32c"}
    defaults = {
        "action": "reconcile",
        "reason": "roots differ, minority",
        "checksum_class": "MISMATCH_MINORITY",
        "replicas": [replica],
        "expires_at_ms": NOW_MS,
    }
    wanted = [defaults | {"priority": place} | row for place, row in enumerate(rows)]
    for name, own in (("reconcile_plan", wanted), ("plan", [])):
        table = pa.Table.from_pylist(own) if own else empty_plan()
        write_result_table(directory, name, table)
    directory.mkdir()
    manifest = {"snapshot_id": "s", "run_id": "r", "result_version": RESULT_VERSION}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    (directory / "summary.json").write_text(json.dumps({"cluster_id": cluster_id}))
    (directory / "_SUCCESS").touch()
    return directory


def empty_plan() -> pa.Table:
    """Return a table with what a plan is sorted by, and no row."""
    return pa.table({"priority": [], "container_id": [], "action": []})


def given(scm: RecordedScm, run_directory: Path, *, per_minute: float = 6e6) -> ReconcileReport:
    """Order a plan, without a wait; return what became of it."""
    orders = ReconcileReport(
        reconcile_plan(FinishedRun.opened(str(run_directory))), is_dry_run=False
    )
    client = OzoneScmClient(parse_addresses(scm.address), HadoopIdentity("suture"), QUICK)
    wish = ReconcileOptions(
        client=client,
        plan=orders.plan,
        is_dry_run=False,
        per_minute=per_minute,
        now_ms=lambda: NOW_MS,
    )
    with closing(client):
        reconcile(wish, orders, lambda: None)
    return orders


def ordered(scm: RecordedScm) -> list[int]:
    """Return the containers whose reconcile was asked for: field 49 of a request, by hand."""
    found = [call.partition(b"\x8a\x03\x02\x08") for call in scm.calls]
    return [behind[0] for _, mark, behind in found if mark]


def test_reconcile_orders_succeed_or_fail_per_container(scm: RecordedScm, tmp_path: Path) -> None:
    """A container that Ozone refuses, because it is erasure-coded or open, does not stop the
    others.
    """
    rows = [{"container_id": key} for key in (1, 3, 5, 2)]

    orders = given(scm, finished_run(tmp_path / "run", *rows))

    assert {
        1: RowOutcome.ORDERED,
        3: RowOutcome.REFUSED,
        5: RowOutcome.REFUSED,
        2: RowOutcome.ORDERED,
    } == {key: outcome for key, (outcome, _) in orders.outcomes.items()}
    assert "only supported for Ratis" in orders.outcomes[3][1]
    assert "in state OPEN" in orders.outcomes[5][1]
    assert [1, 3, 5, 2] == ordered(scm)
    assert orders.is_unfinished


def test_explained_difference_is_never_ordered_reconciled(scm: RecordedScm, tmp_path: Path) -> None:
    """Ozone would compare trees that differ for a known reason again and again."""
    rows = [{"container_id": 1, "checksum_class": "EXPLAINED"}, {"container_id": 2}]

    orders = given(scm, finished_run(tmp_path / "run", *rows))

    assert RowOutcome.EXPLAINED is orders.outcomes[1][0]
    assert [2] == ordered(scm)
    assert not orders.is_unfinished


def test_container_that_only_lacks_a_commit_id_is_never_ordered(
    scm: RecordedScm, tmp_path: Path
) -> None:
    """Ozone takes over no commit id if the trees are equal, so the next plan would order the
    same. If there is another reason, the container is ordered.
    """
    rows = [
        {"container_id": 1, "reason": "commit id behind; no better source than dn2: suspect"},
        {"container_id": 2, "reason": "scan findings; commit id behind"},
    ]

    orders = given(scm, finished_run(tmp_path / "run", *rows))

    assert RowOutcome.EXPLAINED is orders.outcomes[1][0]
    assert [2] == ordered(scm)


def test_an_old_plan_is_not_believed(scm: RecordedScm, tmp_path: Path) -> None:
    """The damage may have been repaired since."""
    rows = [{"container_id": 1, "expires_at_ms": NOW_MS - 1}, {"container_id": 2}]

    orders = given(scm, finished_run(tmp_path / "run", *rows))

    assert RowOutcome.EXPIRED is orders.outcomes[1][0]
    assert [2] == ordered(scm)


def test_a_plan_about_another_cluster_is_refused(scm: RecordedScm, tmp_path: Path) -> None:
    """
    Its containers have the same numbers.
    """
    directory = finished_run(tmp_path / "run", {"container_id": 1}, cluster_id="another")

    with pytest.raises(RefusedError, match="the plan: it is for cluster another") as caught:
        given(scm, directory)

    assert Code.WRONG_CLUSTER is caught.value.code
    assert [] == ordered(scm)


def test_orders_keep_to_the_rate(scm: RecordedScm, tmp_path: Path) -> None:
    """
    Between two of them is waited; before the first is not.
    """
    waits: list[float] = []
    directory = finished_run(tmp_path / "run", {"container_id": 1}, {"container_id": 2})
    orders = ReconcileReport(reconcile_plan(FinishedRun.opened(str(directory))), is_dry_run=False)
    client = OzoneScmClient(parse_addresses(scm.address), HadoopIdentity("suture"), QUICK)
    wish = ReconcileOptions(
        client=client,
        plan=orders.plan,
        is_dry_run=False,
        per_minute=30,
        now_ms=lambda: NOW_MS,
        wait=waits.append,
    )
    with closing(client):
        reconcile(wish, orders, lambda: None)

    assert [2.0] == waits


def test_rows_that_expire_during_the_orders_are_left_out(scm: RecordedScm, tmp_path: Path) -> None:
    """A plan row is valid until its expiry, whatever the rate. No waiting time is spent on
    expired rows.
    """
    waits: list[float] = []
    lives_ms = (0, 1_000, 1_500, 2_500, 3_000)
    rows = [
        {"container_id": key, "expires_at_ms": NOW_MS + life_ms}
        for key, life_ms in zip((1, 4, 6, 2, 7), lives_ms, strict=True)
    ]
    orders = ReconcileReport(
        reconcile_plan(FinishedRun.opened(str(finished_run(tmp_path / "run", *rows)))),
        is_dry_run=False,
    )
    client = OzoneScmClient(parse_addresses(scm.address), HadoopIdentity("suture"), QUICK)
    told: list[None] = []
    wish = ReconcileOptions(
        client=client,
        plan=orders.plan,
        is_dry_run=False,
        per_minute=30,
        now_ms=lambda: NOW_MS + int(sum(waits) * 1000),
        wait=waits.append,
    )
    with closing(client):
        reconcile(wish, orders, lambda: told.append(None))

    assert [1, 2] == ordered(scm)
    expired = [
        key for key, (outcome, _) in orders.outcomes.items() if outcome is RowOutcome.EXPIRED
    ]
    assert [4, 6, 7] == expired
    assert "expired while others were ordered" in orders.outcomes[4][1]
    assert len(rows) == len(told)
    assert [2.0, 2.0] == waits
    assert orders.is_unfinished


def test_without_a_yes_it_is_only_shown(
    scm: RecordedScm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    With one it is done.
    """
    later_ms = 2**53  # in 285,000 years
    directory = finished_run(tmp_path / "run", {"container_id": 2, "expires_at_ms": later_ms})
    words = ["ozone", "reconcile", str(directory), "--scm", scm.address]

    shown = run(words)
    told = capsys.readouterr()
    assert ExitCode.TO_DO == shown
    assert "1 SHOWN" in told.out
    assert "--yes does it" in told.err
    assert [] == ordered(scm)

    done = run([*words, "--yes", "--json"])
    document = document_in(capsys.readouterr().out, "ozone reconcile")
    assert ExitCode.OK == done
    assert [2] == ordered(scm)
    assert 1 == document["outcomes"]["ORDERED"]


def test_an_unfinished_run_is_refused(
    scm: RecordedScm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A plan that is still being written lacks rows.
    """
    directory = finished_run(tmp_path / "run", {"container_id": 1})
    (directory / "_SUCCESS").unlink()

    code = run(["ozone", "reconcile", str(directory), "--scm", scm.address, "--yes"])

    assert ExitCode.FAILED == code
    assert "it is not complete" in capsys.readouterr().err
    assert [] == scm.calls
