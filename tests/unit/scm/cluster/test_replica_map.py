"""The replica map follows reports, and only what they say."""

from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.cluster.replica_map import NodeReplicaReport, ReportProcessor
from scm.state.entities import CommandKind
from suture.errors import Code, UnavailableError
from tests.support.control.scm_world import ScmWorld, replica
from tests.support.control.unwritable import unwritable
from tests.support.heard import logged

DELETED = ReplicaState.DELETED


def page(report_id: int, number: int, *ids: int, last: bool = False) -> NodeReplicaReport:
    """Build one page of a full report of dn1."""
    return NodeReplicaReport(
        True,
        report_id,
        number,
        is_last=last,
        replicas=tuple(replica("dn1", container_id=i) for i in ids),
    )


def some(*ids: int, state: ReplicaState = ReplicaState.CLOSED) -> NodeReplicaReport:
    """Build an incremental report of dn1."""
    return NodeReplicaReport(
        False,
        0,
        0,
        is_last=False,
        replicas=tuple(replica("dn1", state, container_id=i) for i in ids),
    )


def held(world: ScmWorld) -> set[int]:
    """Return the containers dn1 is known to hold."""
    return set(world.state.replicas.on("dn1"))


class TestFullReport:
    @pytest.mark.parametrize(
        ("reports", "expected"),
        [
            ([page(1, 0, 1, 2, last=True)], {1, 2}),
            ([page(1, 0, 1, 2, last=True), page(2, 0, 2, last=True)], {2}),
            ([some(1, 2, 3), page(2, 0, 2, last=True)], {2}),
            ([some(1), page(2, 0, last=True)], set()),
            ([some(9), page(1, 0, 1), page(1, 1, 2)], {1, 2, 9}),
            ([some(9), page(1, 0, 1), page(1, 1, 2, last=True)], {1, 2}),
        ],
    )
    def test_only_the_last_page_removes(
        self, tmp_path: Path, reports: list[NodeReplicaReport], expected: set[int]
    ) -> None:
        """Only replicas that a complete full report does not name are removed."""
        with ScmWorld(tmp_path).running() as world:
            world.join("dn1")
            for report in reports:
                world.call("dn1", report)

            assert expected == held(world)

    def test_a_lost_page_removes_nothing(self, tmp_path: Path) -> None:
        """Pages 0 and 2 say nothing about what page 1 held."""
        with ScmWorld(tmp_path).running() as world:
            world.join("dn1")
            world.call("dn1", some(5))
            world.call("dn1", page(1, 0, 1))
            asked = world.call("dn1", page(1, 2, 3, last=True)).commands

            assert {1, 3, 5} == held(world)
            assert [CommandKind.REREGISTER] == [c.kind for c, _ in asked], (
                "it is to name them all again"
            )

    def test_a_lost_page_that_could_not_be_noted_is_not_remembered(self, tmp_path: Path) -> None:
        """The disk of the state is full. The datanode gets no command, and continues as before."""
        with ScmWorld(tmp_path).running() as world:
            world.join("dn1")
            world.call("dn1", page(1, 0, 1))
            with logged(), unwritable(), pytest.raises(UnavailableError):
                world.call("dn1", page(1, 2, 3, last=True))

            answers = [
                world.call("dn1", page(1, 1, 2)),
                world.call("dn1", page(1, 2, 3, last=True)),
            ]

            assert {1, 2, 3} == held(world)
            assert [(), ()] == [answer.commands for answer in answers]

    def test_a_report_that_could_not_be_noted_ends_no_doubt(self, tmp_path: Path) -> None:
        """A datanode that lost a page and whose full report could not be recorded is asked for
        another one.
        """
        with ScmWorld(tmp_path).running() as world:
            world.join("dn1")
            world.call("dn1", page(1, 1, 2))
            with logged(), unwritable(), pytest.raises(UnavailableError):
                world.call("dn1", page(2, 0, 1, 2, 3, last=True))

            assert {"dn1"} == world.control.reports.cut_off

    def test_a_page_of_another_report_removes_nothing(self, tmp_path: Path) -> None:
        """Pages of two reports are never put together."""
        with ScmWorld(tmp_path).running() as world:
            world.join("dn1")
            world.call("dn1", some(5))
            world.call("dn1", page(1, 0, 1))
            world.call("dn1", page(2, 1, 3, last=True))

            assert {1, 3, 5} == held(world)

    def test_a_page_sent_again_does_not_spoil_the_report(self, tmp_path: Path) -> None:
        """If the answer to a page is lost, the datanode repeats the page."""
        with ScmWorld(tmp_path).running() as world:
            world.join("dn1")
            world.call("dn1", some(5))
            for report in (page(1, 0, 1), page(1, 1, 2), page(1, 1, 2), page(1, 2, 3, last=True)):
                world.call("dn1", report)

            assert {1, 2, 3} == held(world)

    def test_replica_created_between_report_pages_stays(self, tmp_path: Path) -> None:
        """A container created after page 0 was written is in no page."""
        with ScmWorld(tmp_path).running() as world:
            world.join("dn1")
            world.call("dn1", page(1, 0, 1))
            world.call("dn1", some(7))
            world.call("dn1", page(1, 1, 2, last=True))

            assert {1, 2, 7} == held(world)

    def test_replica_deleted_between_report_pages_stays_deleted(self, tmp_path: Path) -> None:
        """A page written before the delete does not bring the replica back."""
        with ScmWorld(tmp_path).running() as world:
            world.join("dn1")
            world.call("dn1", page(1, 0, 1))
            world.call("dn1", some(2, state=DELETED))
            world.call("dn1", page(1, 1, 2, last=True))

            assert {1} == held(world)

    def test_a_restarted_datanode_begins_a_new_report(self, tmp_path: Path) -> None:
        """Pages of the process before count for nothing."""
        with ScmWorld(tmp_path).running() as world:
            world.join("dn1")
            world.call("dn1", some(5))
            world.call("dn1", page(1, 0, 1))
            world.join("dn1", boot_id=2)
            world.call("dn1", page(1, 1, 2, last=True), boot_id=2)

            assert {1, 2, 5} == held(world)

    def test_a_page_that_could_not_be_kept_may_be_sent_again(self, tmp_path: Path) -> None:
        """A failed write leaves the report as far as it was."""
        with ScmWorld(tmp_path).running() as world:
            reports = ReportProcessor(world.state)
            with world.state.change() as change:
                reports.apply(change, "dn1", some(5))
                reports.apply(change, "dn1", page(1, 0, 1))
            with pytest.raises(UnavailableError), world.state.change() as change:  # noqa: PT012
                reports.apply(change, "dn1", page(1, 1, 2, last=True))
                raise UnavailableError(Code.DISK_OUT_OF_SPACE, "no")
            undone = held(world)
            with world.state.change() as change:
                reports.apply(change, "dn1", page(1, 1, 2, last=True))

            assert {1, 5} == undone
            assert {1, 2} == held(world)


class TestIncrementalReport:
    def test_a_deleted_replica_is_removed(self, tmp_path: Path) -> None:
        """DELETED is a report, not a state to keep."""
        with ScmWorld(tmp_path).running() as world:
            world.join("dn1")
            world.call("dn1", some(1, 2))
            world.call("dn1", some(2, 3, state=DELETED))

            assert {1} == held(world)

    def test_reports_survive_a_restart(self, tmp_path: Path) -> None:
        """A report that was answered need not be sent again."""
        with ScmWorld(tmp_path).running() as world:
            world.join("dn1")
            world.call("dn1", some(1, 2))
            world.restart()

            assert {1, 2} == held(world)

    def test_a_report_without_news_writes_nothing(self, tmp_path: Path) -> None:
        """Only the time of the report is new, and that is kept in memory."""
        with ScmWorld(tmp_path).running() as world:
            reports = ReportProcessor(world.state)
            with world.state.change() as change:
                reports.apply(change, "dn1", some(1))
            with world.state.change() as change:
                changed = reports.apply(change, "dn1", some(1))
                rows = dict(change.rows)

            assert set() == changed
            assert {} == rows


class TestUnknownContainer:
    def test_unknown_container_is_shown_and_gets_no_commands(self, tmp_path: Path) -> None:
        """Deleting unknown containers would lose data."""
        with ScmWorld(tmp_path).running() as world:
            world.join("dn1")
            world.beat("dn1", replica("dn1", ReplicaState.OPEN, container_id=77))
            world.control.tick()
            answer = world.beat("dn1")
            page_of_views, _next = world.control.views.containers(0, 10)

            assert () == answer.commands
            assert [(77, "UNKNOWN")] == [(v.container_id, v.state) for v in page_of_views]
            assert "UNKNOWN" == world.control.views.container(77).state

    def test_unknown_containers_id_is_not_allocated(self, tmp_path: Path) -> None:
        """A state restored from a backup must not mix two containers under one id."""
        with ScmWorld(tmp_path).running() as world:
            world.join("dn1", "dn2", "dn3")
            world.beat("dn1", replica("dn1", container_id=1))
            world.beat("dn1", replica("dn1", container_id=2))

            assert 3 == world.control.clients.allocate("c", [1])[0].container_id
