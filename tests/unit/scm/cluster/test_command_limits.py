"""What leaves with a heartbeat: never above a limit, never nothing without a reason."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scm.cluster.commands.command_limits import (
    CLOSE_LIMIT,
    COMMANDS_PER_HEARTBEAT_MAX,
    HARMLESS,
    QUEUE_MAX,
    QUEUED_AGE_S_MAX,
    RECONCILE_LIMIT,
    commands_to_resend,
    expired,
    limit,
    select_sendable,
)
from scm.cluster.commands.loads import replication_limit
from scm.state.entities import CommandKind, CommandPriority, OpState, PendingCommand
from tests.support.control.scm_world import pending

IN_SERVICE = OpState.IN_SERVICE
COUNTS = st.dictionaries(
    st.sampled_from(["close", "delete", "reconcile", "replicate", "reconstruct"]),
    st.integers(0, 60),
)
COMMANDS = st.lists(
    st.builds(
        PendingCommand,
        command_id=st.integers(1, 10_000),
        kind=st.sampled_from(CommandKind),
        container_id=st.integers(1, 10_000),
        datanode_id=st.just("dn1"),
        priority=st.sampled_from(CommandPriority),
        sent_at_s=st.none() | st.floats(0, 100),
    ),
    unique_by=lambda command: command.command_id,
    max_size=150,
)


WEIGHTS = {CommandKind.REPLICATE: 1, CommandKind.RECONSTRUCT: 3}


def sent_of(kind: CommandKind, priority: CommandPriority, commands: list[PendingCommand]) -> int:
    """Count what was sent of a kind and a priority."""
    return sum(
        c.kind is kind and c.priority is priority and c.sent_at_s is not None for c in commands
    )


def busy_of(kind: CommandKind, commands: list[PendingCommand], reported: dict[str, int]) -> int:
    """Count what a node has of a kind that is urgent: reported or sent, whichever is more.

    What it reports may be LOW ones that are running there.
    """
    low = sent_of(kind, CommandPriority.LOW, commands)
    return max(sent_of(kind, CommandPriority.NORMAL, commands), reported.get(kind, 0) - low, 0)


def load_of(commands: list[PendingCommand], reported: dict[str, int]) -> int:
    """Return the weighted replications a node has."""
    return sum(w * busy_of(kind, commands, reported) for kind, w in WEIGHTS.items())


def most_of(kind: CommandKind, op_state: OpState, load: int) -> int:
    """Return how many of the other kinds a node may have beside its replications."""
    return limit(kind, op_state, load)


class TestLimits:
    @pytest.mark.parametrize(
        ("op_state", "replication_count", "expected"),
        [
            (IN_SERVICE, 0, RECONCILE_LIMIT),
            (IN_SERVICE, 1, 9),
            (IN_SERVICE, 18, 1),
            (IN_SERVICE, 19, 0),
            (IN_SERVICE, 21, 0),
            (OpState.DECOMMISSIONING, 20, RECONCILE_LIMIT),
            (OpState.DECOMMISSIONING, 39, 0),
        ],
    )
    def test_reconcile_takes_the_room_replication_leaves_at_weight_two(
        self, op_state: OpState, replication_count: int, expected: int
    ) -> None:
        """A node busy replacing what is missing is not given more to compare."""
        assert expected == limit(CommandKind.RECONCILE, op_state, replication_count)
        assert CLOSE_LIMIT == limit(CommandKind.CLOSE, op_state, replication_count)

    @pytest.mark.parametrize(
        ("kind", "op_state", "replication_count", "expected"),
        [
            (CommandKind.DELETE, IN_SERVICE, 20, 40),
            (CommandKind.DELETE, OpState.DECOMMISSIONING, 0, 40),
            (CommandKind.REPLICATE, IN_SERVICE, 0, 20),
            (CommandKind.REPLICATE, IN_SERVICE, 7, 13),
            (CommandKind.REPLICATE, IN_SERVICE, 30, 0),
            (CommandKind.REPLICATE, OpState.DECOMMISSIONING, 0, 40),
            (CommandKind.REPLICATE, OpState.ENTERING_MAINTENANCE, 7, 33),
            (CommandKind.RECONSTRUCT, IN_SERVICE, 0, 7),
            (CommandKind.RECONSTRUCT, IN_SERVICE, 17, 1),
            (CommandKind.RECONSTRUCT, IN_SERVICE, 19, 1),
            (CommandKind.RECONSTRUCT, IN_SERVICE, 20, 0),
            (CommandKind.RECONSTRUCT, IN_SERVICE, 30, 0),
            (CommandKind.RECONSTRUCT, OpState.DECOMMISSIONING, 0, 14),
            (CommandKind.RECONCILE, IN_SERVICE, 0, 10),
            (CommandKind.RECONCILE, OpState.DECOMMISSIONING, 0, 10),
            (CommandKind.DELETE_BLOCKS, IN_SERVICE, 0, 1),
            (CommandKind.CLOSE, IN_SERVICE, 20, 100),
            (CommandKind.REREGISTER, IN_SERVICE, 20, 100),
        ],
    )
    def test_a_datanode_holds_so_many_of_a_kind(
        self, kind: CommandKind, op_state: OpState, replication_count: int, expected: int
    ) -> None:
        """The numbers that operators know, twice as many copies where nothing is written."""
        assert expected == limit(kind, op_state, replication_count)

    def test_only_what_touches_no_replica_is_harmless(self) -> None:
        """Safe mode lets these pass and no other."""
        harmless = {"close", "refresh_volume_usage", "reregister", "set_operational_state"}

        assert harmless == {kind.name.lower() for kind in HARMLESS}

    def test_a_queue_and_an_answer_are_bounded(self) -> None:
        """Five thousand wait for one datanode, a hundred leave at once."""
        closes = [pending(i, CommandKind.CLOSE) for i in range(1, 151)]

        assert 5_000 == QUEUE_MAX
        assert 100 == len(select_sendable(closes, reported={}, op_state=IN_SERVICE))


class TestDrain:
    def test_kinds_leave_in_the_order_of_their_need(self) -> None:
        """Commands that unblock others come first, and those that only compare come last."""
        commands = [pending(i, kind) for i, kind in enumerate(reversed(CommandKind), start=1)]

        sending = select_sendable(commands, reported={}, op_state=IN_SERVICE)

        assert [
            CommandKind.SET_OPERATIONAL_STATE,
            CommandKind.REREGISTER,
            CommandKind.REFRESH_VOLUME_USAGE,
            CommandKind.CLOSE,
            CommandKind.REPLICATE,
            CommandKind.RECONSTRUCT,
            CommandKind.DELETE,
            CommandKind.DELETE_BLOCKS,
            CommandKind.RECONCILE,
        ] == [command.kind for command in sending]

    def test_answered_command_is_not_sent_again(self) -> None:
        """The command waits for the report that proves it."""
        answered = replace(pending(1, CommandKind.DELETE), is_answered=True)

        assert [pending(2, CommandKind.DELETE)] == select_sendable(
            [answered, pending(2, CommandKind.DELETE)], reported={}, op_state=IN_SERVICE
        )

    @pytest.mark.parametrize(
        ("sent", "reported", "leaving"),
        [
            ([], {"replicate": 19}, 1),
            ([], {"replicate": 20}, 0),
            ([], {"reconstruct": 6}, 2),
            ([pending(90, CommandKind.RECONSTRUCT, sent_at_s=9.0)], {"replicate": 16}, 1),
            ([pending(90, CommandKind.RECONSTRUCT, sent_at_s=1.0)], {"reconstruct": 1}, 9),
            (
                [
                    replace(
                        pending(90, CommandKind.REPLICATE, sent_at_s=9.0),
                        priority=CommandPriority.LOW,
                    )
                ],
                {},
                9,
            ),
        ],
    )
    def test_copies_share_their_room_with_reconstructions(
        self, sent: list[PendingCommand], reported: dict[str, int], leaving: int
    ) -> None:
        """A reconstruction weighs three, whether the datanode reports it or only the SCM knows
        it. The last heartbeat was at 5.0.
        """
        waiting = [pending(i, CommandKind.REPLICATE) for i in range(1, 10)]

        sending = select_sendable(
            [*sent, *waiting], reported=reported, op_state=IN_SERVICE, heard_at_s=5.0
        )

        assert leaving == len(sending)

    def test_reconcile_has_the_room_beside_copies_and_rebuilds(self) -> None:
        """Ten copies and two rebuilds weigh sixteen: two reconciles fit beside them."""
        waiting = [pending(i) for i in range(1, 10)]
        reported = {"replicate": 10, "reconstruct": 2}

        sending = select_sendable(waiting, reported=reported, op_state=IN_SERVICE)

        assert 2 == len(sending)

    @pytest.mark.parametrize(
        ("beside", "leaving"),
        [
            (replace(pending(90, sent_at_s=1.0), priority=CommandPriority.LOW), 9),
            (
                replace(pending(90, sent_at_s=1.0), priority=CommandPriority.LOW, is_answered=True),
                10,
            ),
            (
                replace(
                    pending(90, CommandKind.DELETE, sent_at_s=1.0), priority=CommandPriority.LOW
                ),
                10,
            ),
            (pending(90, sent_at_s=1.0), 9),
            (replace(pending(90, sent_at_s=1.0), is_answered=True), 10),
        ],
    )
    def test_low_ones_have_the_room_that_nobody_uses(
        self, beside: PendingCommand, leaving: int
    ) -> None:
        """A command under way uses the room of its kind once, urgent or not, until it is
        answered.
        """
        low = [replace(pending(i), priority=CommandPriority.LOW) for i in range(1, 20)]

        sending = select_sendable([beside, *low], reported={}, op_state=IN_SERVICE)

        assert leaving == len(sending)

    def test_reconcile_gets_the_room_that_copies_leave_in_the_same_answer(self) -> None:
        """Sixteen copies leave now: two to compare fit beside them."""
        copies = [pending(i, CommandKind.REPLICATE) for i in range(1, 17)]
        comparing = [pending(i) for i in range(20, 30)]

        sending = select_sendable([*comparing, *copies], reported={}, op_state=IN_SERVICE)

        assert {CommandKind.REPLICATE: 16, CommandKind.RECONCILE: 2} == Counter(
            c.kind for c in sending
        )

    @settings(deadline=None)
    @given(COMMANDS, COUNTS, st.sampled_from(OpState))
    def test_no_limit_is_ever_exceeded(
        self, commands: list[PendingCommand], reported: dict[str, int], op_state: OpState
    ) -> None:
        """Reported or sent, whichever is more, plus what leaves now stays within each limit."""
        sending = select_sendable(commands, reported=reported, op_state=op_state)

        assert len(sending) <= COMMANDS_PER_HEARTBEAT_MAX
        assert all(command in commands and command.sent_at_s is None for command in sending)
        assert len(sending) == len({command.command_id for command in sending})
        load = load_of(commands, reported)
        urgent = [c for c in sending if c.priority is CommandPriority.NORMAL]
        for command in urgent:
            if command.kind in WEIGHTS:
                assert load < replication_limit(op_state)
                load += WEIGHTS[command.kind]
        for kind, count in Counter(c.kind for c in urgent if c.kind not in WEIGHTS).items():
            assert busy_of(kind, commands, reported) + count <= most_of(kind, op_state, load)

    @settings(deadline=None)
    @given(COMMANDS, COUNTS)
    def test_permitted_commands_are_sent_at_once(
        self, commands: list[PendingCommand], reported: dict[str, int]
    ) -> None:
        """If the limits and the answer have room, no command waits."""
        sending = select_sendable(commands, reported=reported, op_state=IN_SERVICE)

        left = [c for c in commands if c.sent_at_s is None and c not in sending]
        load = load_of(commands, reported)
        for c in sending:
            load += WEIGHTS.get(c.kind, 0) * (c.priority is CommandPriority.NORMAL)
        for command in left:
            low = command.priority is CommandPriority.LOW
            counted = [c for c in sending if c.kind is command.kind]
            busy = busy_of(command.kind, commands, reported)
            busy += sum(low or c.priority is CommandPriority.NORMAL for c in counted)
            busy += low * sent_of(command.kind, CommandPriority.LOW, commands)
            if command.kind not in WEIGHTS:
                is_full = busy >= most_of(command.kind, IN_SERVICE, load)
            elif low:
                beside = load - WEIGHTS[command.kind] * busy_of(command.kind, commands, reported)
                beside -= WEIGHTS[command.kind] * sum(
                    c.priority is CommandPriority.NORMAL for c in counted
                )
                is_full = busy * WEIGHTS[command.kind] + beside >= replication_limit(IN_SERVICE)
            else:
                is_full = load >= replication_limit(IN_SERVICE)
            assert is_full or len(sending) == COMMANDS_PER_HEARTBEAT_MAX

    @pytest.mark.parametrize("reported", [0, 10])
    def test_copies_of_the_balancer_take_no_room_from_urgent_ones(self, reported: int) -> None:
        """Ten of them run, and the datanode reports what runs: twenty urgent ones leave."""
        moves = [
            replace(pending(i, CommandKind.REPLICATE, sent_at_s=1.0), priority=CommandPriority.LOW)
            for i in range(1, 11)
        ]
        urgent = [pending(i, CommandKind.REPLICATE) for i in range(11, 41)]
        more = [
            replace(pending(i, CommandKind.REPLICATE), priority=CommandPriority.LOW)
            for i in range(41, 71)
        ]

        sending = select_sendable(
            [*moves, *urgent, *more], reported={"replicate": reported}, op_state=IN_SERVICE
        )
        alone = select_sendable(
            [*moves, *more], reported={"replicate": reported}, op_state=IN_SERVICE
        )

        assert urgent[:20] == sending
        assert more[:10] == alone

    @pytest.mark.parametrize("running", [0, 1, 3, 6, 7, 8])
    def test_seven_reconstructions_are_seven(self, running: int) -> None:
        """Each weighs three, and one that begins below the limit of twenty may end above it."""
        made = [pending(i, CommandKind.RECONSTRUCT, sent_at_s=1.0) for i in range(1, running + 1)]
        waiting = [pending(i, CommandKind.RECONSTRUCT) for i in range(11, 21)]

        sending = select_sendable(
            [*made, *waiting], reported={"reconstruct": running}, op_state=IN_SERVICE
        )

        assert max(0, 7 - running) == len(sending)

    def test_heartbeat_answer_has_a_command_limit_and_closes_go_first(self) -> None:
        """The limit holds whatever the limits of the kinds add up to."""
        deletes = [pending(i, CommandKind.DELETE) for i in range(1, 41)]
        closes = [pending(i, CommandKind.CLOSE) for i in range(41, 111)]

        sending = select_sendable([*deletes, *closes], reported={}, op_state=IN_SERVICE)

        assert COMMANDS_PER_HEARTBEAT_MAX == len(sending)
        assert {CommandKind.CLOSE: 70, CommandKind.DELETE: 30} == Counter(c.kind for c in sending)

    @settings(deadline=None)
    @given(COMMANDS)
    def test_normal_leaves_before_low_and_old_before_new(
        self, commands: list[PendingCommand]
    ) -> None:
        """Within a kind."""
        sending = select_sendable(commands, reported={}, op_state=IN_SERVICE)

        for kind in CommandKind:
            order = [
                (c.priority is CommandPriority.LOW, c.command_id) for c in sending if c.kind is kind
            ]
            assert order == sorted(order)

    @settings(deadline=None)
    @given(st.lists(st.integers(0, 12), min_size=1, max_size=30))
    def test_over_many_heartbeats_the_limit_holds_and_all_leave(self, answered: list[int]) -> None:
        """A datanode that answers now and then is never given more than it may hold."""
        commands = {i: pending(i) for i in range(1, 60)}

        for count in [*answered, *[RECONCILE_LIMIT] * 12]:
            sent = [c for c in commands.values() if c.sent_at_s is not None]
            for command in sent[:count]:
                del commands[command.command_id]
            for command in select_sendable(
                list(commands.values()), reported={}, op_state=IN_SERVICE
            ):
                commands[command.command_id] = pending(command.command_id, sent_at_s=1.0)
            in_flight = sum(c.sent_at_s is not None for c in commands.values())
            assert in_flight <= RECONCILE_LIMIT

        assert all(c.sent_at_s is not None for c in commands.values())


class TestLost:
    def test_unanswered_and_unknown_there_is_queued_again(self) -> None:
        """The heartbeat's answer that carried it never arrived."""
        command = replace(pending(1, sent_at_s=0.0), deadline_ms=99)

        again = commands_to_resend([command], reported={}, now_s=11.0, patience_s=10.0)

        assert [pending(1)] == again

    @pytest.mark.parametrize(
        ("command", "reported"),
        [
            (pending(1), {}),
            (pending(1, sent_at_s=5.0), {}),
            (pending(1, sent_at_s=1.0), {}),
            (pending(1, sent_at_s=0.0), {"reconcile": 1}),
            (replace(pending(1, CommandKind.DELETE, sent_at_s=0.0), is_answered=True), {}),
        ],
    )
    def test_queued_young_or_running_ones_are_not_lost(
        self, command: PendingCommand, reported: dict[str, int]
    ) -> None:
        """A long reconcile is not sent twice."""
        assert [] == commands_to_resend([command], reported=reported, now_s=11.0, patience_s=10.0)


class TestExpired:
    @pytest.mark.parametrize(
        ("command", "now_s", "is_expired"),
        [
            (pending(1, sent_at_s=0.0), 60.0, False),
            (pending(1, sent_at_s=0.0), 60.1, True),
            (pending(1, queued_at_s=0.0), 61.0, False),
            (pending(1, sent_at_s=2_000.0, queued_at_s=0.0), 2_060.0, False),
            (pending(1, queued_at_s=0.0), QUEUED_AGE_S_MAX + 0.1, True),
            (pending(1, queued_at_s=0.0), 1_800.0, False),
            (pending(1, queued_at_s=0.0), 1_800.1, True),
            (replace(pending(1, sent_at_s=0.0), priority=CommandPriority.LOW), 240.0, False),
            (replace(pending(1, sent_at_s=0.0), priority=CommandPriority.LOW), 240.1, True),
        ],
    )
    def test_deadline_counts_from_sending(
        self, command: PendingCommand, now_s: float, is_expired: bool
    ) -> None:
        """Waiting in our queue does not use up the datanode's time, but ends too."""
        assert is_expired == bool(expired([command], now_s=now_s, deadline_s=60.0))

    @pytest.mark.parametrize(
        ("priority", "bytes_per_s", "late_after_s"),
        [
            (CommandPriority.NORMAL, 0, 60.0),  # no rate: its size does not count
            (CommandPriority.NORMAL, 10, 70.0),
            (CommandPriority.LOW, 10, 250.0),
            (CommandPriority.NORMAL, 100, 61.0),
        ],
    )
    def test_a_large_one_has_the_time_that_its_bytes_take(
        self, priority: CommandPriority, bytes_per_s: int, late_after_s: float
    ) -> None:
        """A hundred bytes, beside the sixty seconds that each has."""
        command = replace(pending(1, sent_at_s=0.0), priority=priority, size_bytes=100)

        for now_s, is_late in ((late_after_s, False), (late_after_s + 0.1, True)):
            found = expired([command], now_s=now_s, deadline_s=60.0, bytes_per_s=bytes_per_s)
            assert is_late is bool(found)

    def test_a_rebuild_of_many_blocks_has_the_time_that_they_take(self) -> None:
        """A million small ones are few bytes, and hours of work: a run that is cut off begins
        again at the first of them."""
        command = replace(pending(1, CommandKind.RECONSTRUCT, sent_at_s=0.0), block_count=1_000_000)

        assert [] == expired([command], now_s=12 * 3_600.0, deadline_s=60.0)
        assert [command] == expired([command], now_s=24 * 3_600.0, deadline_s=60.0)


class TestWeight:
    @pytest.mark.parametrize(("beside", "expected"), [(0, 7), (2, 6), (5, 5), (19, 1), (20, 0)])
    def test_reconstructions_are_limited_by_their_weight(self, beside: int, expected: int) -> None:
        """Each has a weight of three, of twenty. The last one may exceed the limit."""
        assert expected == limit(CommandKind.RECONSTRUCT, IN_SERVICE, beside)

    def test_copies_have_the_room_that_rebuilds_leave(self) -> None:
        """Two of three leave fourteen of twenty."""
        copies = [pending(i, CommandKind.REPLICATE) for i in range(1, 30)]

        sending = select_sendable(copies, reported={"reconstruct": 2}, op_state=IN_SERVICE)

        assert 14 == len(sending)
