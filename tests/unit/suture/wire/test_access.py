"""The table of who may call what: whole, and closed to everything that it does not name."""

from contextlib import suppress
from dataclasses import replace
from itertools import starmap
from typing import Any

import grpc
import pytest

from suture.errors import Code, RefusedError, UnavailableError
from suture.wire.security.caller import CertificateIdentity, Role
from suture.wire.server.authorization import (
    ANYBODY,
    DATANODE,
    SCM,
    TABLE,
    AccessRule,
    AuthorizationMiddleware,
    Caller,
    check,
    check_node,
    facts_of,
    outcome_of,
)
from suture.wire.server.rate_limit import ACCOUNT_COUNT_MAX, CallerRateLimiter
from suture.wire.v1 import datanode_pb2, scm_pb2
from tests.support.clock import FakeClock

SERVICES = {
    "Datanode": (datanode_pb2.DESCRIPTOR.services_by_name["Datanode"], DATANODE),
    "Scm": (scm_pb2.DESCRIPTOR.services_by_name["Scm"], SCM),
}
ADA = CertificateIdentity("ada", frozenset({Role.ADMIN}), "", 0.0, 1_000.0)
NODE = CertificateIdentity("dn1", frozenset({Role.PEER}), "id1", 0.0, 1_000.0)


def calls(identity: CertificateIdentity | None) -> Caller:
    """Return a caller with that identity."""
    return Caller("ipv4:10.0.0.1:4711", identity)


class TestTable:
    @pytest.mark.parametrize("service", SERVICES)
    def test_every_method_of_the_contract_is_in_it_and_nothing_else(self, service: str) -> None:
        """A new method is refused until its roles are listed."""
        descriptor, rules = SERVICES[service]

        assert {method.name for method in descriptor.methods} == set(rules)

    def test_no_method_of_ours_is_open_to_anybody(self) -> None:
        """
        Each of our methods has roles, and none has all of them; only health is for all.
        """
        for path, rule in TABLE.items():
            assert rule.roles, path
            assert (rule.roles == ANYBODY) == path.startswith("/grpc.health.v1.Health/"), path

    def test_the_scm_calls_nobody(self) -> None:
        """
        Orders travel in answers to heartbeats: a stolen certificate of the SCM opens no datanode.
        """
        assert not any(Role.SCM in rule.roles for rule in (*DATANODE.values(), *SCM.values()))

    @pytest.mark.parametrize("service", SERVICES)
    def test_access_rules_name_existing_request_fields(self, service: str) -> None:
        """The audit log and the check of the datanode's id read these fields."""
        descriptor, rules = SERVICES[service]
        for name, rule in rules.items():
            fields = set(descriptor.methods_by_name[name].input_type.fields_by_name)
            named = {*rule.fields, rule.node_field, rule.audited_if}
            assert named - {""} <= fields, name

    def test_calls_that_change_more_than_data_are_audited(self) -> None:
        """An operator's commands and replacements of keys are audited. Writing new keys, reading
        and listing are not."""
        quiet = {name for name, rule in (*DATANODE.items(), *SCM.items()) if not rule.audited}

        assert quiet == {
            *(
                "CreateContainer",
                "WriteChunk",
                "PutBlock",
                "WriteBlocks",
                "GetContainer",
                "ListContainers",
            ),
            *("GetBlocks", "ListBlocks", "ReadChunk", "GetContainerHashes", "ListFindings"),
            *("ReadBlock", "GetSmallFile", "ProveReplica"),
            *("ReadChunks", "ProveChunks"),
            *("Status", "ScrubStatus", "Heartbeat", "AllocateBlocks", "LookupKey"),
            *("ListKeys", "EndWriteSession", "ListNodes", "ListContainerInfos", "GetContainerInfo"),
            *("ListOutcomes", "GetQueues", "GetReport", "ListDecommissions", "ListHistory"),
            *(
                *("ListHolds", "ListAnchors", "ListSettings"),
                "CountContainers",
                "ConfirmDeletes",
                "CheckStop",
                "ListDisks",
                "ListChanges",
                "ListAudit",
                "GetRestoreRecovery",
                "ListContainerKeys",
            ),
        }

    def test_roles_that_compute_from_shards_may_read_them(self) -> None:
        """A client that reads a block group asks each datanode for its shard. A datanode that
        verifies parity asks the control plane for the other holders.
        """
        assert Role.CLIENT in DATANODE["GetContainer"].roles
        assert {Role.PEER, Role.CLIENT} <= DATANODE["ReadChunk"].roles
        assert DATANODE["ReadChunk"].roles == DATANODE["ReadChunks"].roles
        assert {Role.PEER, Role.CLIENT} <= DATANODE["GetBlocks"].roles
        assert Role.PEER in SCM["GetContainerInfo"].roles


class TestCheck:
    @pytest.mark.parametrize("role", Role)
    def test_places_of_datanodes_and_operators_are_trusted(
        self, role: Role, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Clients and callers with an expired certificate are not trusted."""
        places: list[str] = []
        clock = FakeClock()
        gate = AuthorizationMiddleware(
            now_s=clock.monotonic_s,
            trust=places.append,
            table={"/s/Get": AccessRule(frozenset(Role) - {Role.SCM})},
        )
        caller = Caller("ipv4:10.0.0.1:1", replace(ADA, roles=frozenset({role})))
        monkeypatch.setattr("suture.wire.server.authorization.caller_of", lambda _: caller)
        handler = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
        guarded = gate.wrap("/s/Get", handler)

        assert guarded is not None
        for age_s in 0.0, ADA.expires_at_s:
            clock.advance_s(age_s)
            with suppress(RefusedError):
                guarded.unary_unary(b"", None)
        assert places == (["ipv4:10.0.0.1:1"] if role in {Role.PEER, Role.ADMIN} else [])

    def test_the_role_decides(self) -> None:
        """A caller with one of the rule's roles is accepted. Another is refused, and the error
        has both roles.
        """
        check(AccessRule(frozenset({Role.ADMIN, Role.PEER})), "/s/Scan", calls(ADA), 1.0)

        with pytest.raises(RefusedError, match="Scan is for peer; ada is admin") as caught:
            check(AccessRule(frozenset({Role.PEER})), "/s/Scan", calls(ADA), 1.0)

        assert Code.PERMISSION_DENIED == caught.value.code

    def test_a_certificate_without_a_role_is_nobody(self) -> None:
        """
        That an authority signed it is not enough.
        """
        nobody = replace(ADA, roles=frozenset())

        with pytest.raises(RefusedError, match="has no role") as caught:
            check(AccessRule(frozenset({Role.ADMIN})), "/s/Scan", calls(nobody), 1.0)

        assert Code.UNAUTHENTICATED == caught.value.code

    def test_a_certificate_that_expires_on_a_standing_connection_is_refused(self) -> None:
        """
        The handshake was long ago; each call looks at the clock again.
        """
        rule = AccessRule(frozenset({Role.ADMIN}))
        check(rule, "/s/Scan", calls(ADA), 999.0)

        with pytest.raises(RefusedError, match="expired") as caught:
            check(rule, "/s/Scan", calls(ADA), 1_000.0)

        assert Code.UNAUTHENTICATED == caught.value.code

    def test_a_datanode_speaks_for_itself_only(self) -> None:
        """
        The id in a heartbeat is the one in the certificate, where that names one.
        """
        rule = SCM["Heartbeat"]
        mine = scm_pb2.HeartbeatRequest(datanode_id="id1")
        other = scm_pb2.HeartbeatRequest(datanode_id="id2")

        check_node(rule, mine, calls(NODE))
        check_node(rule, other, calls(replace(NODE, node_id="")))
        check_node(rule, other, calls(None))
        with pytest.raises(RefusedError, match="may act for datanode id1, not for id2"):
            check_node(rule, other, calls(NODE))


class TestFacts:
    def test_lists_are_cut_and_counted(self) -> None:
        """
        A plan of thousands of rows is one line of bounded length.
        """
        request = scm_pb2.ApplyPlanRequest(
            run_id="r", rows=[scm_pb2.PlanRow(container_id=n) for n in range(1, 101)]
        )

        facts = facts_of(SCM["ApplyPlan"], request)

        expected = {"run_id": "r", "container_ids": list(range(1, 21)), "container_ids_count": 100}
        assert expected == facts

    def test_an_answer_says_what_was_decided(self) -> None:
        """
        Decisions are counted by their code; an import names the container that arrived.
        """
        decisions = [scm_pb2.ContainerDecision(code=code) for code in ("OK", "OK", "STALE_PLAN")]
        arrived = datanode_pb2.ImportContainerResponse()
        arrived.replica.container_id = 7

        assert {"decisions": {"OK": 2, "STALE_PLAN": 1}} == outcome_of(
            scm_pb2.ContainerDecisions(decisions=decisions)
        )
        assert {"container_id": 7} == outcome_of(arrived)


class TestAllowance:
    def test_caller_above_its_rate_waits_and_others_do_not(self) -> None:
        """After its burst a caller has its rate, however often it tries. Each caller has its own
        allowance.
        """
        clock = FakeClock()
        allowances = CallerRateLimiter(10, monotonic_s=clock.monotonic_s)

        first = [allowances.try_acquire("a") for _ in range(25)]
        clock.advance_s(0.5)
        later = [allowances.try_acquire("a") for _ in range(10)]

        assert (20, 5) == (sum(first), sum(later))
        assert allowances.try_acquire("b")

    def test_memory_is_bounded_whoever_connects(self) -> None:
        """
        Strangers without number do not fill the memory.
        """
        allowances = CallerRateLimiter(1)

        for number in range(ACCOUNT_COUNT_MAX * 2):
            allowances.try_acquire(str(number))

        assert len(allowances._left) <= ACCOUNT_COUNT_MAX


class Notes:
    """Keeps what would go to the audit log."""

    path = None

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def record(self, action: str, result: str, **_facts: object) -> None:
        """Keep a line."""
        self.lines.append((action, result))


class Loopback:
    """A call without TLS, as gRPC shows it."""

    def auth_context(self) -> dict[str, list[bytes]]:
        """Show no certificate."""
        return {}

    def peer(self) -> str:
        """Return where it comes from."""
        return "ipv4:127.0.0.1:4711"


class TestGate:
    def guarded(self, gate: AuthorizationMiddleware, method: str) -> tuple[Any, Any]:
        """Return a handler, and the same behind the gate."""
        handler = grpc.unary_unary_rpc_method_handler(lambda request, _context: request)
        return handler, gate.wrap(f"/suture.v1.Datanode/{method}", handler)

    def test_gate_without_tls_still_audits_and_limits_calls(self) -> None:
        """A server without TLS passes a read through unchanged. Audited calls still go to the
        audit log, and a rate limit still applies.
        """
        notes = Notes()
        gate = AuthorizationMiddleware(notes, knows_callers=False)
        handler, read = self.guarded(gate, "GetSmallFile")
        assert read is handler
        _, close = self.guarded(gate, "CloseContainer")
        close.unary_unary(datanode_pb2.CloseContainerRequest(container_id=1), Loopback())
        assert [("CloseContainer", "OK")] == notes.lines

        counted = AuthorizationMiddleware(calls_per_s_max=1, knows_callers=False)
        _, read = self.guarded(counted, "GetSmallFile")
        with pytest.raises(UnavailableError) as refusal:
            list(starmap(read.unary_unary, [(datanode_pb2.ReadBlockRequest(), Loopback())] * 10))
        assert Code.BUSY is refusal.value.code

    def test_gate_without_tls_limits_calls_that_stream_their_answers(self) -> None:
        """Calls within the limit get the answers of the method."""
        counted = AuthorizationMiddleware(calls_per_s_max=1, knows_callers=False)
        stream = grpc.unary_stream_rpc_method_handler(lambda request, _context: (request,))
        streamed: Any = counted.wrap("/suture.v1.Datanode/ReadChunk", stream)
        request = datanode_pb2.ReadChunkRequest(offset=3)

        assert [request] == list(streamed.unary_stream(request, Loopback()))
        with pytest.raises(UnavailableError, match="rate limit"):
            list(starmap(streamed.unary_stream, [(request, Loopback())] * 10))

    def test_gate_with_tls_checks_each_call(self) -> None:
        """A server with TLS passes no call through unchanged."""
        handler, read = self.guarded(AuthorizationMiddleware(), "GetSmallFile")

        assert read is not handler
