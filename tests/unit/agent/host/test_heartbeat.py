"""The heartbeat: nothing that happened is forgotten before the SCM has heard it."""

import struct

import pytest

from agent.host import heartbeat as module
from agent.host.datanode_identity import DatanodeIdentity
from agent.host.heartbeat import HeartbeatWorker, RegistrationInfo
from agent.host.outbox import STATUSES_KEPT_MAX, Outbox, OutboxFanout
from agent.host.term_tracker import TermTracker
from merkle.replica import LAYOUT_VERSION, ContainerId
from suture.errors import Code, RefusedError, UnavailableError, VolumeFailed
from suture.runtime.loop import Backoff, Busy, RetryAfter
from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.clock import FakeClock
from tests.support.control.heard_heartbeats import IDENTITY, Failing, Finishing, Replicas, Scm


def heartbeat(
    scm: Scm, replicas: Replicas, clock: FakeClock, orders: list[scm_pb2.Command] | None = None
) -> HeartbeatWorker:
    """Return a heartbeat of datanode dn1."""
    taken = orders if orders is not None else []
    return HeartbeatWorker(
        scm, replicas, IDENTITY, lambda commands, _: taken.extend(commands), clock, outbox=Outbox()
    )


def run_until_quiet(beat: HeartbeatWorker) -> None:
    """Step until nothing more waits to be said."""
    while isinstance(beat.step(), Busy):
        pass


def incremental_ids(scm: Scm) -> list[int]:
    """Return the containers of all incremental reports, in order."""
    return [
        replica.container_id
        for request in scm.heard
        for report in request.reports
        if not report.full
        for replica in report.replicas
    ]


def full_pages(scm: Scm) -> list[scm_pb2.ColumnReport]:
    """Return the pages of all full reports, in order."""
    return [page for request in scm.heard for page in request.column_reports]


def ids_of(page: scm_pb2.ColumnReport) -> list[int]:
    """Return the containers of a page: little-endian words of 8 bytes."""
    return [number for (number,) in struct.iter_unpack("<Q", page.replicas.container_id)]


def test_full_report_waits_for_the_rebuild_of_a_lost_index() -> None:
    """The SCM would consider the replicas that are not loaded yet as deleted. Replicas that are
    loaded or changed meanwhile are reported; the full report follows the rebuild.
    """
    scm, replicas = Scm(), Replicas(4)
    replicas.waiting = {3, 4}
    beat = heartbeat(scm, replicas, FakeClock())
    beat.outbox.report_all()
    for container_id in (1, 4):
        beat.outbox.notify(ContainerId(container_id))
    run_until_quiet(beat)
    assert ([], [1]) == (full_pages(scm), incremental_ids(scm))

    replicas.waiting = set()
    beat.outbox.notify(ContainerId(4))
    run_until_quiet(beat)

    assert [[1, 2, 3, 4]] == [ids_of(page) for page in full_pages(scm)]
    assert [1, 4] == incremental_ids(scm)


class TestSpacing:
    def test_news_of_a_moment_go_together(self) -> None:
        """Several wake-ups within the spacing are reported in one heartbeat."""
        scm, clock = Scm(), FakeClock()
        beat = HeartbeatWorker(
            scm, Replicas(1), IDENTITY, lambda *_: None, clock, outbox=Outbox(), spacing_s=0.5
        )
        beat.step()
        for number in range(5):
            beat.outbox.answer(scm_pb2.CommandStatus(command_id=number))

            assert Backoff(0.5) == beat.step()

        clock.advance_s(0.5)
        beat.step()
        assert [0, 5] == [len(request.command_statuses) for request in scm.heard]


class TestClocks:
    @pytest.mark.parametrize(
        ("answered_at_ms", "expected_ms"),
        [
            (1_000_000, 0),
            (1_060_000, 0),
            (993_000, 7_000),
            (1_067_000, -7_000),
        ],
    )
    def test_slow_call_proves_no_difference_of_the_clocks(
        self, answered_at_ms: int, expected_ms: int
    ) -> None:
        """The call takes a minute, in which the SCM may have read its clock at any moment. Only
        what is outside of this minute is a difference.
        """
        scm, clock = Scm(), FakeClock(now_ms=1_000_000)
        scm.during = lambda: clock.advance_s(60)
        scm.answers = [scm_pb2.HeartbeatResponse(term=3, answered_at_ms=answered_at_ms)]
        beat = heartbeat(scm, Replicas(0), clock)

        beat.step()

        assert expected_ms == beat.outbox.clock_offset_ms

    def test_scm_whose_clock_differs_most_counts(self) -> None:
        """Among several, in either direction."""
        boxes = OutboxFanout(3)
        for box, answered_at_ms in zip(boxes.boxes, (101, 109, 96), strict=True):
            box.note_clocks(sent_at_ms=100, answered_at_ms=answered_at_ms, received_at_ms=100)

        assert -9 == boxes.clock_offset_ms


class TestReports:
    def test_the_first_report_is_full(self) -> None:
        """
        After registering, every replica is reported once, under one report id.
        """
        scm = Scm()

        run_until_quiet(heartbeat(scm, Replicas(3), FakeClock()))

        [page] = full_pages(scm)
        assert (True, [1, 2, 3]) == (page.last, ids_of(page))

    def test_a_long_full_report_comes_in_pages(self) -> None:
        """
        More replicas than one heartbeat holds are sent page by page, without a wait between.
        """
        scm = Scm()
        count = module.REPLICAS_PER_HEARTBEAT_MAX + 1

        run_until_quiet(heartbeat(scm, Replicas(count), FakeClock()))

        pages = full_pages(scm)
        assert [(0, False), (1, True)] == [(page.page, page.last) for page in pages]
        assert 1 == len({page.report_id for page in pages})
        assert list(range(1, count + 1)) == [number for page in pages for number in ids_of(page)]
        assert [] == [report for request in scm.heard for report in request.reports]

    def test_a_change_is_reported_as_it_is_when_sent(self) -> None:
        """
        A replica that changes many times between two heartbeats is reported once, as it is now.
        """
        scm, replicas = Scm(), Replicas(2)
        beat = heartbeat(scm, replicas, FakeClock())
        run_until_quiet(beat)
        scm.heard.clear()

        for bcsid in (5, 6, 7):
            replicas.bcsids[2] = bcsid
            beat.outbox.notify(ContainerId(2))
        beat.step()

        [report] = scm.heard[0].reports
        assert [(2, 7)] == [(r.container_id, r.bcsid) for r in report.replicas]

    def test_a_deleted_replica_is_reported_as_such(self) -> None:
        """The replica is reported as deleted, and not just left out."""
        scm, replicas = Scm(), Replicas(2)
        beat = heartbeat(scm, replicas, FakeClock())
        run_until_quiet(beat)
        del replicas.bcsids[1]

        beat.outbox.notify(ContainerId(1))
        beat.step()

        [report] = scm.heard[-1].reports
        assert [container_pb2.DELETED] == [replica.state for replica in report.replicas]

    def test_changes_of_a_failed_heartbeat_are_reported_again(self) -> None:
        """Changes and command answers of a failed heartbeat are in the next one."""
        scm, replicas = Scm(), Replicas(2)
        beat = heartbeat(scm, replicas, FakeClock())
        run_until_quiet(beat)
        scm.heard.clear()
        scm.errors = [UnavailableError(Code.UNAVAILABLE, "away"), RefusedError(Code.BUSY, "odd")]
        beat.outbox.notify(ContainerId(2))
        beat.outbox.answer(scm_pb2.CommandStatus(command_id=9))

        beat.step()
        beat.step()
        run_until_quiet(beat)

        assert 2 in incremental_ids(scm)
        assert [9] == [status.command_id for r in scm.heard for status in r.command_statuses]

    def test_a_full_report_that_was_cut_off_begins_anew(self) -> None:
        """If a page is lost, all pages are sent again under a new id, so the SCM never counts a
        part.
        """
        scm = Scm()
        beat = heartbeat(scm, Replicas(module.REPLICAS_PER_HEARTBEAT_MAX + 1), FakeClock())
        beat.step()
        scm.heard.clear()
        scm.errors = [UnavailableError(Code.UNAVAILABLE, "away")]

        beat.step()
        run_until_quiet(beat)

        pages = full_pages(scm)
        assert [0, 1] == [page.page for page in pages]
        assert 1 == len({page.report_id for page in pages})

    def test_a_full_report_that_fails_here_names_every_replica_in_the_end(self) -> None:
        """
        A replica that cannot be read for once costs a repetition; none is taken for gone.
        """
        scm = Scm()
        beat = heartbeat(scm, Failing(3, broken=2), FakeClock())

        with pytest.raises(VolumeFailed):
            beat.step()
        run_until_quiet(beat)

        assert [[1, 2, 3]] == list(map(ids_of, full_pages(scm)))

    def test_a_number_that_has_no_place_in_columns_silences_nobody(self) -> None:
        """Such a page is sent with one message per replica. The control plane leaves out that
        replica only, and accepts the heartbeat.
        """
        scm, replicas = Scm(), Replicas(3)
        replicas.bcsids[2] = 2**64 - 1
        beat = heartbeat(scm, replicas, FakeClock())

        run_until_quiet(beat)

        (page,) = [report for request in scm.heard for report in request.reports if report.full]
        assert [1, 2, 3] == [replica.container_id for replica in page.replicas]
        assert not any(request.column_reports for request in scm.heard)

    def test_a_change_that_could_not_be_read_is_told_later(self) -> None:
        """If one of the changed replicas cannot be read, all of them are reported with the next
        call.
        """
        scm, replicas = Scm(), Failing(3, broken=2)
        replicas.failures_left = 0
        beat = heartbeat(scm, replicas, FakeClock())
        run_until_quiet(beat)
        for container_id in (1, 2):
            beat.outbox.notify(ContainerId(container_id))
        replicas.failures_left = 1

        with pytest.raises(VolumeFailed):
            beat.step()
        run_until_quiet(beat)

        assert [1, 2] == sorted(incremental_ids(scm))

    def test_a_replica_made_during_a_full_report_is_told_after_it(self) -> None:
        """A replica newer than the list is on no page, and is reported after the last one."""
        scm = Scm()
        replicas = Replicas(module.REPLICAS_PER_HEARTBEAT_MAX + 1)
        beat = heartbeat(scm, replicas, FakeClock())
        newest = ContainerId(len(replicas.bcsids) + 1)

        beat.step()
        replicas.bcsids[newest] = 1
        beat.outbox.notify(newest)
        run_until_quiet(beat)

        last_full = max(i for i, r in enumerate(scm.heard) if r.column_reports)
        after = [
            replica for r in scm.heard[last_full + 1 :] for p in r.reports for replica in p.replicas
        ]
        assert [newest] == [replica.container_id for replica in after]

    def test_a_full_report_is_due_every_hour(self) -> None:
        """
        Without any change a full report goes out again within the hour.
        """
        scm, clock = Scm(), FakeClock()
        beat = heartbeat(scm, Replicas(1), clock)
        run_until_quiet(beat)
        scm.heard.clear()

        clock.advance_s(module.FULL_REPORT_INTERVAL_S)
        run_until_quiet(beat)

        assert 1 == len(full_pages(scm))

    def test_the_full_reports_of_a_cluster_spread(self) -> None:
        """
        Datanodes that began together report again at different times, each within the hour.
        """
        clock, again = FakeClock(), 0
        for _ in range(40):
            scm = Scm()
            beat = heartbeat(scm, Replicas(1), clock)
            run_until_quiet(beat)
            clock.advance_s(module.FULL_REPORT_INTERVAL_S * 7 / 8)
            run_until_quiet(beat)
            again += sum(len(request.column_reports) for request in scm.heard[1:])

        assert 0 < again < 40


class TestScmAway:
    @pytest.mark.parametrize(("code", "longest_s"), [(Code.BUSY, 30.0), (Code.UNAVAILABLE, 1.0)])
    def test_heartbeat_retries_back_off_with_jitter(self, code: Code, longest_s: float) -> None:
        """Without a listener the delay does not exceed the SCM's interval, so that a restarted
        SCM soon hears all datanodes.
        """
        scm = Scm()
        beat = heartbeat(scm, Replicas(1), FakeClock())
        run_until_quiet(beat)
        scm.errors = [UnavailableError(code, "away") for _ in range(50)]

        steps = [beat.step() for _ in range(50)]
        waits = [step.delay_s for step in steps if isinstance(step, RetryAfter)]

        assert 50 == len(waits)
        assert module.RETRY_S_MIN <= min(waits)
        assert longest_s / 2 < max(waits) <= longest_s
        assert len(set(waits[25:])) > 1, "all datanodes would come back at the same moment"
        assert "away" in beat.state

    def test_heartbeat_state_is_registered_again_after_a_failure(self) -> None:
        """The state shows the last call, not the last failure."""
        scm = Scm()
        beat = heartbeat(scm, Replicas(1), FakeClock())
        run_until_quiet(beat)
        scm.errors = [UnavailableError(Code.UNAVAILABLE, "away")]
        beat.step()
        assert "away" in beat.state

        run_until_quiet(beat)

        assert "registered" == beat.state

    def test_an_scm_that_forgot_us_is_registered_with_again(self) -> None:
        """
        The answer "register again" leads to a registration, with our layout, and a full report.
        """
        scm = Scm()
        beat = heartbeat(scm, Replicas(1), FakeClock())
        run_until_quiet(beat)
        scm.heard.clear()
        scm.answers = [scm_pb2.HeartbeatResponse(term=3, reregister=True)]

        run_until_quiet(beat)

        assert [LAYOUT_VERSION] * 2 == [r.layout_version for r in scm.registered]
        assert [1] == [len(r.column_reports) for r in scm.heard[1:]]

    def test_another_cluster_is_refused(self) -> None:
        """
        An SCM of another cluster gets no report.
        """
        scm = Scm()
        other = DatanodeIdentity("dn1", "CID-other", "1", 42)
        identity = RegistrationInfo(other, "127.0.0.1:1", "/rack")
        beat = HeartbeatWorker(
            scm, Replicas(1), identity, lambda *_: None, FakeClock(), outbox=Outbox()
        )

        beat.step()

        assert [] == scm.heard
        assert "WRONG_CLUSTER" in beat.state

    def test_answers_are_bounded_while_it_is_away(self) -> None:
        """The number of kept answers is bounded, however long the SCM is away."""
        beat = heartbeat(Scm(), Replicas(1), FakeClock())

        for number in range(STATUSES_KEPT_MAX + 5):
            beat.outbox.answer(scm_pb2.CommandStatus(command_id=number))

        assert STATUSES_KEPT_MAX == len(beat.outbox._statuses)

    def test_no_answer_is_lost_when_memory_overflows_during_a_call(self) -> None:
        """
        Only the oldest are dropped, to make room; what was not sent is sent later.
        """
        scm = Scm()
        beat = heartbeat(scm, Replicas(0), FakeClock())
        kept = STATUSES_KEPT_MAX
        for number in range(kept):
            beat.outbox.answer(scm_pb2.CommandStatus(command_id=number + 1))
        more = [scm_pb2.CommandStatus(command_id=kept + 1)]
        scm.during = lambda: beat.outbox.answer(more.pop()) if more else None

        run_until_quiet(beat)

        told = [status.command_id for request in scm.heard for status in request.command_statuses]
        assert list(range(1, kept + 2)) == told

    def test_answers_with_much_to_tell_are_spread_over_heartbeats(self) -> None:
        """No heartbeat exceeds the SCM's limit, whatever the size of the answers, and each is
        sent once.
        """
        scm = Scm()
        beat = heartbeat(scm, Replicas(0), FakeClock())
        text = "x" * (module.STATUSES_BYTES_MAX // 3)
        for number in range(1, 8):
            beat.outbox.answer(scm_pb2.CommandStatus(command_id=number, message=text))
        beat.outbox.answer(scm_pb2.CommandStatus(command_id=8, message=4 * text))

        run_until_quiet(beat)

        told = [[status.command_id for status in r.command_statuses] for r in scm.heard]
        assert list(range(1, 9)) == [number for numbers in told for number in numbers]
        assert 2 == max(len(numbers) for numbers in told)

    def test_a_task_that_ends_meanwhile_is_in_the_queues_or_answered(self) -> None:
        """The SCM would otherwise take the command for lost and send it again."""
        scm, replicas = Scm(), Finishing()
        beat = heartbeat(scm, replicas, FakeClock())
        run_until_quiet(beat)
        scm.heard.clear()
        replicas.answer = lambda: beat.outbox.answer(scm_pb2.CommandStatus(command_id=7))

        replicas.is_running = True
        beat.step()

        [request] = scm.heard
        assert request.queues or request.command_statuses


class TestCommands:
    def test_commands_are_handed_on(self) -> None:
        """Commands of an answer reach the handler."""
        scm = Scm()
        orders: list[scm_pb2.Command] = []
        beat = heartbeat(scm, Replicas(1), FakeClock(), orders)
        scm.answers = [scm_pb2.HeartbeatResponse(term=3, commands=[scm_pb2.Command(command_id=7)])]

        run_until_quiet(beat)

        assert [7] == [command.command_id for command in orders]


def test_last_copies_are_heard_with_each_answer_and_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container that an answer does not name is no longer a last copy. An endless list is
    truncated.
    """
    monkeypatch.setattr(module, "LAST_COPIES_MAX", 2)
    scm = Scm()
    scm.answers = [
        scm_pb2.HeartbeatResponse(term=3, sole_healthy_container_ids=ids)
        for ids in ([7], [], [1, 2, 3])
    ]
    heard: list[list[int]] = []
    beat = HeartbeatWorker(
        scm,
        Replicas(0),
        IDENTITY,
        lambda *_: None,
        FakeClock(),
        outbox=Outbox(),
        on_last_copies=lambda ids: heard.append(list(ids)),
    )

    for _ in range(3):
        beat.step()

    assert [[7], [], [1, 2]] == heard


def test_rates_of_each_heartbeat_answer_are_passed_on() -> None:
    """An answer without rates removes the limits."""
    scm = Scm()
    scm.answers = [
        scm_pb2.HeartbeatResponse(term=3, copy_bytes_per_s=7, reconcile_bytes_per_s=8),
        scm_pb2.HeartbeatResponse(term=3),
    ]
    heard: list[tuple[int, int]] = []
    beat = HeartbeatWorker(
        scm,
        Replicas(0),
        IDENTITY,
        lambda *_: None,
        FakeClock(),
        outbox=Outbox(),
        on_rates=lambda copies, reconciles: heard.append((copies, reconciles)),
    )

    for _ in range(2):
        beat.step()

    assert [(7, 8), (0, 0)] == heard


def test_heartbeat_answers_of_an_older_term_are_ignored() -> None:
    """The leader is the control plane with the highest term seen."""
    terms, heard = TermTracker(), list[tuple[str, int]]()
    beats = {}
    for name in ("old", "new"):
        scm = Scm()
        scm.answers = [
            scm_pb2.HeartbeatResponse(term=term, sole_healthy_container_ids=[term])
            for term in ({"old": 3, "new": 4}[name],) * 2
        ]
        beats[name] = HeartbeatWorker(
            scm,
            Replicas(0),
            IDENTITY,
            lambda *_: None,
            FakeClock(),
            outbox=Outbox(),
            terms=terms,
            on_last_copies=lambda ids, name=name: heard.append((name, *ids)),  # type: ignore[misc]
        )

    for name in ("old", "new", "old", "new"):
        beats[name].step()

    assert [("old", 3), ("new", 4), ("new", 4)] == heard
