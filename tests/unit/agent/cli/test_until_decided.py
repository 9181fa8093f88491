"""Commands about several items ask the SCM again for those that it refuses for the moment."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from agent.cli.change import (
    apply,
    balance,
    container_commands,
    hold_commands,
    mark_lost_commands,
    node_commands,
    recover,
    volume_commands,
)
from agent.cli.change import trust as trusting
from agent.cli.inspect import scm_commands
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.exit_codes import ExitCode
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2

PASSING = ("BUSY", "UNAVAILABLE", "SAFE_MODE")
ITEMS = ("container_ids", "datanode_ids", "rows")


class BusyScm:
    """An SCM that refuses the second item of the first `times` requests, and records all items."""

    def __init__(self, code: str, *, times: int = 1, raised: SutureError | None = None) -> None:
        self.code = code
        self.times = times
        self.raised = raised
        self.asked: list[list[Any]] = []
        self.worlds: list[list[int]] = []

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        kinds = {
            "mark_containers_lost": (
                scm_pb2.MarkContainersLostResponse,
                scm_pb2.ForgottenContainer,
            ),
            "remove_nodes": (scm_pb2.NodeDecisions, scm_pb2.NodeDecision),
            "command_nodes": (scm_pb2.NodeDecisions, scm_pb2.NodeDecision),
            "set_operational_states": (scm_pb2.NodeDecisions, scm_pb2.NodeDecision),
        }
        answer_of, decision_of = kinds.get(
            name, (scm_pb2.ContainerDecisions, scm_pb2.ContainerDecision)
        )

        def submit(request: Any) -> Any:
            given = next(list(getattr(request, f)) for f in ITEMS if hasattr(request, f))
            self.asked.append([getattr(one, "container_id", one) for one in given])
            self.worlds.append(list(getattr(request, "worlds", ())))
            if self.raised is not None and len(self.asked) == 2:
                raise self.raised
            decisions = []
            for item in self.asked[-1]:
                is_busy = item in {2, "dn2"} and len(self.asked) <= self.times
                key = {"container_id" if isinstance(item, int) else "datanode_id": item}
                code = self.code if is_busy else "OK"
                decisions.append(decision_of(code=code, message="later", **key))
            field = "containers" if name == "mark_containers_lost" else "decisions"
            return answer_of(**{field: decisions})

        return submit


def client_of(scm: object) -> Any:
    """Return a client of an SCM whose datanodes are named by their ids."""
    return SimpleNamespace(scm=scm, peer=lambda _datanode: None)


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Return a function that connects all commands to an SCM."""

    class Connection:
        def __init__(self, client: object) -> None:
            self.client = client

        def __enter__(self) -> object:
            return self.client

        def __exit__(self, *_: object) -> None:
            pass

    def connect_to(scm: object) -> None:
        for module in (
            apply,
            balance,
            container_commands,
            hold_commands,
            mark_lost_commands,
            node_commands,
            recover,
        ):
            monkeypatch.setattr(module, "connect", lambda: Connection(client_of(scm)))
        for module in (mark_lost_commands, node_commands):
            monkeypatch.setattr(module, "datanode_ids", lambda _client, ids, **_: ids)
        for module in (hold_commands, container_commands):
            monkeypatch.setattr(module, "datanode_id", lambda _client, name: name)
        monkeypatch.setattr(container_commands, "safe_mode_line", lambda _client: "")

    return connect_to


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the pauses."""
    monkeypatch.setattr("time.sleep", lambda _seconds: None)


COMMANDS: dict[str, Callable[[], int]] = {
    "replicate": lambda: container_commands.replicate([1, 2, 3], yes=True),
    "delete": lambda: container_commands.delete([1, 2, 3], "dn1", yes=True),
    "close": lambda: container_commands.close([1, 2, 3], force=True, yes=True),
    "reconcile": lambda: container_commands.reconcile([1, 2, 3], wait_s=0),
    "mark-lost": lambda: mark_lost_commands.mark_lost([1, 2, 3], yes=True),
    "hold": lambda: hold_commands.hold([1, 2, 3]),
    "remove-node": lambda: mark_lost_commands.remove_node(["dn1", "dn2", "dn3"], yes=True),
    "refresh-volumes": lambda: node_commands.refresh_volumes(["dn1", "dn2", "dn3"]),
    "decommission": lambda: node_commands.decommission(["dn1", "dn2", "dn3"], yes=True),
    "maintenance": lambda: node_commands.maintenance(["dn1", "dn2", "dn3"], yes=True),
}


@pytest.mark.parametrize("code", PASSING)
@pytest.mark.parametrize("command", COMMANDS)
def test_item_refused_for_the_moment_is_submitted_again_alone(
    command: str,
    code: str,
    connected: Callable[[object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command prints once what it waits for, and succeeds."""
    scm = BusyScm(code, times=2)
    connected(scm)

    ended = COMMANDS[command]()

    second = "dn2" if isinstance(scm.asked[0][0], str) else 2
    assert [[second], [second]] == scm.asked[1:]
    assert ExitCode.OK == ended
    said = " ".join(capsys.readouterr().err.split())
    assert 1 == said.count("waiting for the control plane: 1 of 3 are refused for the moment")
    assert f"{code}: later" in said


@pytest.mark.parametrize("is_dry_run", [True, False])
def test_row_of_a_plan_refused_for_the_moment_is_submitted_again_alone(is_dry_run: bool) -> None:
    """Its fingerprint goes with it."""
    scm = BusyScm("BUSY")
    submission = apply.PlanSubmission(client_of(scm), "snapshot", "run")
    rows = [scm_pb2.PlanRow(container_id=number, action="replicate") for number in (1, 2, 3)]
    no_scans: Any = ()

    answer = submission.decide(rows, no_scans, [11, 12, 13], dry_run=is_dry_run)

    assert [[1, 2, 3], [2]] == scm.asked
    assert [[11, 12, 13], [12]] == scm.worlds
    assert [(1, "OK"), (2, "OK"), (3, "OK")] == [(d.container_id, d.code) for d in answer.decisions]


def test_request_carried_out_as_a_whole_is_submitted_as_a_whole(
    connected: Callable[[object], None],
) -> None:
    """The SCM names only the refused datanodes, and has removed none."""
    asked: list[list[str]] = []

    def remove(request: scm_pb2.RemoveNodesRequest) -> scm_pb2.NodeDecisions:
        asked.append(list(request.datanode_ids))
        if len(asked) == 1:
            refused = scm_pb2.NodeDecision(datanode_id="dn2", code="SAFE_MODE")
            return scm_pb2.NodeDecisions(decisions=[refused])
        found = [scm_pb2.NodeDecision(datanode_id=n, code="OK") for n in request.datanode_ids]
        return scm_pb2.NodeDecisions(decisions=found)

    connected(SimpleNamespace(remove_nodes=remove))

    assert ExitCode.OK == mark_lost_commands.remove_node(["dn1", "dn2"], yes=True)
    assert [["dn1", "dn2"]] * 2 == asked


def test_balance_waits_for_the_end_of_safe_mode(connected: Callable[[object], None]) -> None:
    """The SCM refuses the whole call."""
    answers: list[Any] = [
        UnavailableError(Code.SAFE_MODE, "cannot balance: the SCM is in safe mode")
    ]

    def begin(_request: object) -> scm_pb2.BalanceResponse:
        if answers:
            raise answers.pop()
        return scm_pb2.BalanceResponse(running=True)

    connected(SimpleNamespace(balance=begin))

    assert ExitCode.OK == balance.balance(yes=True)


def test_refusal_that_does_not_pass_is_the_decision(
    connected: Callable[[object], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decisions on other items stay."""
    now_s = iter(range(0, 10_000, 50))
    monkeypatch.setattr("time.monotonic", lambda: float(next(now_s)))
    scm = BusyScm("BUSY", times=1_000)
    connected(scm)

    ended = container_commands.replicate([1, 2, 3], yes=True)

    assert ExitCode.FAILED == ended
    assert [1, 2, 3] == scm.asked[0]
    assert {(2,)} == {tuple(items) for items in scm.asked[1:]}


@pytest.mark.parametrize("code", ["INELIGIBLE", "STALE_PLAN", "NOT_ENOUGH_NODES"])
def test_other_refusals_are_final(code: str, connected: Callable[[object], None]) -> None:
    """They stay as they are without a change by somebody."""
    scm = BusyScm(code)
    connected(scm)

    assert ExitCode.FAILED == container_commands.replicate([1, 2, 3], yes=True)
    assert [[1, 2, 3]] == scm.asked


@pytest.mark.parametrize(
    "error",
    [
        UnavailableError(Code.UNAVAILABLE, "the SCM did not answer in time"),
        RefusedError(Code.PERMISSION_DENIED, "not an operator"),
    ],
)
def test_failure_of_the_second_call_keeps_the_decisions_of_the_first(
    error: SutureError, connected: Callable[[object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The failure is the decision on the items of that call, which is not repeated."""
    scm = BusyScm("BUSY", raised=error)
    connected(scm)

    ended = container_commands.replicate([1, 2, 3], yes=True)

    assert ExitCode.FAILED == ended
    assert [[1, 2, 3], [2]] == scm.asked
    shown = capsys.readouterr().out
    assert error.code.value in shown
    assert 2 == shown.count(" OK ")


@pytest.mark.parametrize("code", PASSING)
def test_reconcile_after_trust_is_ordered_again(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the contradiction stays until the next scan."""
    replicas = [
        scm_pb2.ContainerInfoReplica(datanode=container_pb2.DatanodeEndpoint(datanode_id=name))
        for name in ("dn1", "dn2")
    ]
    info = scm_pb2.ContainerInfo(container_id=2, replicas=replicas)
    monkeypatch.setattr(trusting, "fetch_container", lambda _client, _number: info)
    answer = datanode_pb2.TrustReplicaResponse(change_count=1, shown=7, result="converged")
    monkeypatch.setattr(trusting, "request_trust", lambda *_args, **_: answer)
    scm = BusyScm(code)

    ended = trusting.trust(client_of(scm), 2, "dn1", dry_run=False, yes=True)

    assert (ExitCode.OK, [[2], [2]]) == (ended, scm.asked)


@pytest.mark.parametrize("code", PASSING)
@pytest.mark.parametrize("factor", [0, 3], ids=["deleted here", "copied elsewhere"])
def test_replica_without_room_is_ordered_away_again(
    factor: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retirement with --wait does not end because all sources are busy."""
    monkeypatch.setattr(
        volume_commands,
        "fetch_container",
        lambda _, number: scm_pb2.ContainerInfo(container_id=number, replication_factor=factor),
    )
    scm, sent = BusyScm(code), dict[int, list[int]]()
    volume = datanode_pb2.VolumeStatus(unplaceable_container_ids=[1, 2])
    place = volume_commands.VolumeRef("dn1", "host:1", "volume")

    assert volume_commands.send_away(client_of(scm), place, volume, sent)
    assert [[1, 2], [2]] == scm.asked
    assert ({1, 2} if factor else set()) == set(sent)


def test_failed_scan_of_a_plan_is_the_decision_on_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows were ordered before, and their commands are shown."""

    def away(_client: object, _number: int) -> scm_pb2.ContainerInfo:
        raise UnavailableError(Code.UNAVAILABLE, "connection refused")

    monkeypatch.setattr(scm_commands, "fetch_container", away)

    decision = scm_commands.scan_decision(
        client_of(None), scm_pb2.PlanRow(container_id=5), dry_run=False
    )

    assert (5, "UNAVAILABLE", "connection refused") == (
        decision.container_id,
        decision.code,
        decision.message,
    )


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.BUSY])
def test_results_are_awaited_over_a_restart_of_the_scm(code: Code) -> None:
    """The command has time left."""
    failures = [UnavailableError(code, "connection refused")] * 5

    def list_outcomes(_request: object) -> scm_pb2.ListOutcomesResponse:
        if failures:
            raise failures.pop()
        return scm_pb2.ListOutcomesResponse(outcomes=[scm_pb2.Outcome()])

    client = client_of(SimpleNamespace(list_outcomes=list_outcomes))

    outcomes, pending = scm_commands.wait_for_outcomes(client, [7], 600.0)

    assert (1, []) == (len(outcomes), pending)


def recovering_scm(missing: list[list[str]]) -> SimpleNamespace:
    """Return a restored SCM with these missing datanodes at each look, the last one for ever."""

    def get_restore_recovery(_request: object) -> scm_pb2.GetRestoreRecoveryResponse:
        names = missing.pop(0) if len(missing) > 1 else missing[0]
        return scm_pb2.GetRestoreRecoveryResponse(restored=True, missing_datanode_ids=names)

    ends = [UnavailableError(Code.SAFE_MODE, "dn3 did not report all containers")]

    def end(_request: object) -> scm_pb2.RecoverFromRestoreResponse:
        if ends:
            raise ends.pop()
        return scm_pb2.RecoverFromRestoreResponse()

    return SimpleNamespace(get_restore_recovery=get_restore_recovery, recover_from_restore=end)


def test_recovery_waits_until_all_datanodes_have_reported(
    connected: Callable[[object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """They call soon after the SCM was started."""
    connected(recovering_scm([["dn1", "dn2"], ["dn2"], []]))

    ended = recover.recover()

    assert ExitCode.OK == ended
    assert (
        "waiting for the control plane: cannot finish the recovery: dn1, dn2 have not reported yet"
        in capsys.readouterr().err
    )


def test_recovery_ends_without_a_datanode_that_does_not_report(
    connected: Callable[[object], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command names it, and the way to go on without it."""
    now_s = iter(range(0, 10_000, 50))
    monkeypatch.setattr("time.monotonic", lambda: float(next(now_s)))
    connected(recovering_scm([["dn1"]]))

    ended = recover.recover()

    assert ExitCode.UNAVAILABLE == ended
    assert "--force" in capsys.readouterr().err
