"""Access control of both services: a table of methods, and a layer that checks it before every
call.

- A method that is not in the table cannot be called.
- Over TLS, the roles in the caller's certificate determine the methods that it may call.
- Over plaintext (loopback, or allowed by an option), callers cannot be distinguished. They may call
  every method in the table.
- The number of calls per second of each caller is limited.
- Risky actions and all refusals are written to the audit log.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import grpc

from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.wire.security.caller import CertificateIdentity, Role, identity_of
from suture.wire.server.blocked_calls import account_of
from suture.wire.server.rate_limit import CallerRateLimiter

PLAINTEXT: Final = "plaintext"
DONE: Final = "OK"
LISTED_COUNT_MAX: Final = 20  # items of a list in the audit log; a longer list is cut

PEER: Final = frozenset({Role.PEER})
CLIENT: Final = frozenset({Role.CLIENT})
ADMIN: Final = frozenset({Role.ADMIN})
ANYBODY: Final = frozenset(Role)  # any caller with a trusted certificate

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


@dataclass(frozen=True, slots=True)
class AccessRule:
    """The access rule of one method: the roles that may call it, and the fields of its request that
    are written to the audit log.

    `node_field` is the field with the id of the calling datanode. If `audited_if` is not "", a call
    is audited only if this field of its request is set.
    """

    roles: frozenset[Role]
    audited: bool = False
    fields: tuple[str, ...] = ()
    node_field: str = ""
    audited_if: str = ""


def _audited(roles: frozenset[Role], *fields: str) -> AccessRule:
    return AccessRule(roles, audited=True, fields=fields)


DATANODE: Final[Mapping[str, AccessRule]] = {
    "CreateContainer": AccessRule(PEER | CLIENT),
    "WriteChunk": AccessRule(PEER | CLIENT),
    "PutBlock": AccessRule(PEER | CLIENT),
    "WriteBlocks": AccessRule(PEER | CLIENT),
    "CloseContainer": _audited(PEER, "container_id", "force"),
    "DeleteContainer": _audited(PEER, "container_id", "force"),
    "GetContainer": AccessRule(PEER | ADMIN | CLIENT),
    "ListContainers": AccessRule(PEER | ADMIN),
    "GetBlocks": AccessRule(PEER | ADMIN | CLIENT),
    "ListBlocks": AccessRule(PEER | ADMIN | CLIENT),
    "ReadChunk": AccessRule(PEER | ADMIN | CLIENT),
    "ReadChunks": AccessRule(PEER | ADMIN | CLIENT),
    "ReadBlock": AccessRule(PEER | ADMIN | CLIENT),
    "GetSmallFile": AccessRule(PEER | ADMIN | CLIENT),
    "GetContainerHashes": AccessRule(PEER | ADMIN),
    "ProveChunks": AccessRule(PEER),
    "ProveReplica": AccessRule(PEER),
    "ImportContainer": _audited(PEER),
    "ScanContainer": _audited(ADMIN, "container_id"),
    "SampleChunks": _audited(ADMIN, "chunk_count", "drawn_count", "seed"),
    "TrustReplica": _audited(ADMIN, "container_id", "trusted_datanode_id", "dry_run"),
    "ListFindings": AccessRule(ADMIN),
    "ListHistory": AccessRule(ADMIN),
    "ListChanges": AccessRule(ADMIN),
    "ListAudit": AccessRule(ADMIN),
    "Status": AccessRule(ADMIN),
    "ScrubStatus": AccessRule(ADMIN),
    "ListDisks": AccessRule(ADMIN),
    "ControlVolume": _audited(ADMIN, "volume_id", "service", "add_path", "target_volume_id"),
    "ControlScrub": _audited(ADMIN, "volume_id", "pause_ms", "resume", "skip_container_id"),
}
SCM: Final[Mapping[str, AccessRule]] = {
    "Register": AccessRule(
        PEER, audited=True, fields=("datanode_id", "address"), node_field="datanode_id"
    ),
    "Heartbeat": AccessRule(PEER, node_field="datanode_id"),
    "ConfirmDeletes": AccessRule(PEER),
    "AllocateBlocks": AccessRule(CLIENT),
    "CommitKey": AccessRule(CLIENT, audited=True, fields=("keys",), audited_if="replace"),
    "LookupKey": AccessRule(CLIENT | ADMIN),
    "ListKeys": AccessRule(CLIENT | ADMIN),
    "EndWriteSession": AccessRule(CLIENT),
    "ListNodes": AccessRule(PEER | ADMIN),
    "ListContainerInfos": AccessRule(ADMIN),
    "GetContainerInfo": AccessRule(PEER | ADMIN),
    "CountContainers": AccessRule(ADMIN),
    "CloseContainers": _audited(ADMIN, "container_ids", "force", "dry_run"),
    "ReconcileContainers": _audited(ADMIN, "container_ids"),
    "ApplyPlan": _audited(ADMIN, "run_id", "rows", "dry_run"),
    "ExportSnapshot": _audited(ADMIN),
    "ListOutcomes": AccessRule(ADMIN),
    "DeleteKeys": _audited(CLIENT | ADMIN, "keys", "dry_run"),
    "ReplicateContainers": _audited(ADMIN, "container_ids", "target_datanode_id", "dry_run"),
    "DeleteReplicas": _audited(ADMIN, "container_ids", "datanode_id", "dry_run"),
    "CommandNodes": _audited(ADMIN, "datanode_ids", "type"),
    "GetQueues": AccessRule(ADMIN),
    "SafeMode": _audited(ADMIN, "leave", "enter"),
    "GetReport": AccessRule(ADMIN),
    "SetOperationalStates": _audited(
        ADMIN,
        *("datanode_ids", "op_state", "op_expiry_ms", "force", "skipped_checks", "dry_run"),
    ),
    "RemoveNodes": _audited(ADMIN, "datanode_ids", "force", "dry_run"),
    "MarkContainersLost": _audited(ADMIN, "container_ids", "dry_run", "undo"),
    "ListDecommissions": AccessRule(ADMIN),
    "CheckStop": AccessRule(ADMIN),
    "HoldContainers": _audited(ADMIN, "container_ids", "datanode_id", "release"),
    "ListHolds": AccessRule(ADMIN),
    "ChangeSettings": _audited(ADMIN, "control", "works", "rack", "value", "duration_ms", "remove"),
    "ListSettings": AccessRule(ADMIN),
    "ListAnchors": AccessRule(ADMIN),
    "ListAudit": AccessRule(ADMIN),
    "ListContainerKeys": AccessRule(ADMIN),
    "GetRestoreRecovery": AccessRule(ADMIN),
    "RecoverFromRestore": _audited(ADMIN, "dry_run", "finish", "force"),
    "Balance": _audited(ADMIN, "threshold_permille", "dry_run", "stop"),
}
HEALTH: Final[Mapping[str, AccessRule]] = {
    "Check": AccessRule(ANYBODY),
    "Watch": AccessRule(ANYBODY),
}

TABLE: Final[Mapping[str, AccessRule]] = {
    f"/{service}/{method}": rule
    for service, rules in (
        ("suture.v1.Datanode", DATANODE),
        ("suture.v1.Scm", SCM),
        ("grpc.health.v1.Health", HEALTH),
    )
    for method, rule in rules.items()
}


class Audit(Protocol):
    """Receives the entries of the audit log. `path` is the file of the log; None if there is
    none."""

    path: Path | None

    def record(self, action: str, result: str, **facts: object) -> None:
        """Record one action and its result. The method must not raise an exception."""
        ...


class NullAudit:
    """An audit log that records nothing, for servers of tests and benchmarks."""

    path: Path | None = None

    def record(self, action: str, result: str, **facts: object) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a method. Over plaintext, `identity` is None."""

    place: str  # address and port
    identity: CertificateIdentity | None

    @property
    def name(self) -> str:
        """Name of the caller in the audit log."""
        return self.identity.name if self.identity else PLAINTEXT

    @property
    def account(self) -> str:
        """The account whose limits apply to the caller. Without a certificate, it is the caller's
        host; on loopback it is the connection, so that processes are distinguished."""
        if self.identity:
            return f"{self.identity.name} {self.identity.node_id}"
        return account_of(self.place)


def caller_of(context: grpc.ServicerContext) -> Caller:
    """Return the caller of a call, with the identity in its certificate."""
    certificates = context.auth_context().get("x509_pem_cert")
    identity = identity_of(certificates[0]) if certificates else None
    return Caller(context.peer(), identity)


def check(rule: AccessRule, method: str, caller: Caller, now_s: float) -> None:
    """Raise RefusedError if the caller's certificate has expired, or has no role that `rule`
    allows. A caller without a certificate (plaintext) is always allowed."""
    identity = caller.identity
    if identity is None:
        return
    action = method.rpartition("/")[2]
    if now_s >= identity.expires_at_s:  # it may have expired since the connection was opened
        raise RefusedError(
            Code.UNAUTHENTICATED,
            f"the certificate of {identity.name} has expired",
            hint="suture tls issue creates a new one",
        )
    if not identity.roles:
        raise RefusedError(
            Code.UNAUTHENTICATED,
            f"the certificate of {identity.name} has no role",
            hint="issue a certificate with suture tls issue --role",
        )
    if not identity.roles & rule.roles:
        raise RefusedError(
            Code.PERMISSION_DENIED,
            f"{action} is for {_list(rule.roles)}; {identity.name} is {_list(identity.roles)}",
            hint="use a certificate with that role",
            caller=identity.name,
        )


def check_node(rule: AccessRule, request: Any, caller: Caller) -> None:
    """Raise RefusedError if the datanode id in the request differs from the id in the caller's
    certificate."""
    if caller.identity is None or not rule.node_field or not caller.identity.node_id:
        return
    said = getattr(request, rule.node_field)
    if said != caller.identity.node_id:
        raise RefusedError(
            Code.PERMISSION_DENIED,
            f"{caller.identity.name} may act for datanode {caller.identity.node_id}, not for "
            f"{said}",
            caller=caller.identity.name,
        )


def _list(roles: frozenset[Role]) -> str:
    return " or ".join(sorted(roles))


def facts_of(rule: AccessRule, request: Any) -> dict[str, object]:
    """Return the fields of a request for the audit log. Long lists are cut, and their length is
    added."""
    facts: dict[str, object] = {}
    for name in rule.fields:
        value = getattr(request, name)
        if name == "rows":
            name, value = "container_ids", [row.container_id for row in value]
        if name == "keys":
            value = [getattr(key, "key", key) for key in value]
        if isinstance(value, str | int):
            facts |= {name: value} if value else {}
            continue
        facts[name] = list(value[:LISTED_COUNT_MAX])
        if len(value) > LISTED_COUNT_MAX:
            facts[f"{name}_count"] = len(value)
    return facts


def outcome_of(answer: Any) -> dict[str, object]:
    """Return the facts about a response for the audit log: the number of decisions per code, or the
    container of the replica."""
    decisions = getattr(answer, "decisions", None)
    if decisions is not None:
        return {
            "decisions": dict(Counter(item.code or Code.MALFORMED_REQUEST for item in decisions))
        }
    replica = getattr(answer, "replica", None)
    return {} if replica is None else {"container_id": replica.container_id}


class AuthorizationMiddleware:
    """A layer of a server that refuses calls that the table does not allow, limits the rate of
    calls, and writes the audit log.

    It must be the innermost layer. `ErrorStatusMiddleware` around it converts its errors to
    statuses.
    """

    def __init__(
        self,
        audit: Audit | None = None,
        *,
        calls_per_s_max: int = 0,
        now_s: Callable[[], float] = time.time,
        table: Mapping[str, AccessRule] = TABLE,
        knows_callers: bool = True,
        trust: Callable[[str], object] = lambda _place: None,
    ) -> None:
        """Create the layer. `calls_per_s_max` is the limit of each caller; 0 = unlimited.

        `knows_callers` is False for a server without TLS, which cannot distinguish callers. `trust`
        is called with the address of each caller that has the certificate of a datanode or an
        operator.
        """
        self._trust = trust
        self._audit = audit or NullAudit()
        self._allowances = CallerRateLimiter(calls_per_s_max) if calls_per_s_max else None
        self._now_s = now_s
        self._table = table
        self._knows_callers = knows_callers

    def wrap(self, method: str, handler: Any) -> _Handler:
        """Return a handler that makes the required checks before it calls `handler`."""
        rule = self._table.get(method)
        if rule is not None and (rule.roles == ANYBODY or self._is_open(rule)):
            return handler  # type: ignore[no-any-return]
        if rule is None:
            rule = AccessRule(frozenset())
            behavior: Any = _closed
        elif self._only_counts(rule) and not handler.request_streaming:
            behavior = self._counted(method, rule, handler.unary_stream or handler.unary_unary)
        elif handler.response_streaming:
            behavior = self._stream(method, rule, handler.unary_stream)
        else:
            behavior = self._unary(
                method, rule, handler.stream_unary or handler.unary_unary, handler.request_streaming
            )
        return _like(handler, behavior)

    def _is_open(self, rule: AccessRule) -> bool:
        """Return True if a call needs no check: the server has no certificates and no limits, and
        the call is not audited."""
        return not (self._knows_callers or self._allowances or rule.audited)

    def _only_counts(self, rule: AccessRule) -> bool:
        """Return True if the limit of the rate is the only check that a call needs."""
        return not (self._knows_callers or rule.audited)

    def _admit(
        self, method: str, rule: AccessRule, request: Any, context: grpc.ServicerContext
    ) -> Caller:
        """Check a call, and return its caller. Raise RefusedError or UnavailableError if the call
        is not allowed. `request` is None for a stream of requests."""
        caller = caller_of(context)
        try:
            if self._allowances is not None and not self._allowances.try_acquire(caller.account):
                raise UnavailableError(
                    Code.BUSY, f"{caller.name} exceeds the rate limit of this server"
                )
            check(rule, method, caller, self._now_s())
            if request is not None:
                check_node(rule, request, caller)
        except RefusedError as error:
            self._write(method, rule, caller, request, error.code.value)
            raise
        if caller.identity and caller.identity.roles & (PEER | ADMIN):
            self._trust(caller.place)
        return caller

    def _write(
        self,
        method: str,
        rule: AccessRule,
        caller: Caller,
        request: Any,
        result: str,
        **more: object,
    ) -> None:
        facts = facts_of(rule, request) if request is not None else {}
        roles = sorted(caller.identity.roles) if caller.identity else []
        self._audit.record(
            method.rpartition("/")[2],
            result,
            who=caller.name,
            roles=[role.value for role in roles],
            place=caller.place,
            **(facts | more),
        )

    def _counted(
        self, method: str, rule: AccessRule, behavior: Callable[..., Any]
    ) -> Callable[..., Any]:
        assert self._allowances is not None, "else the gate is open"
        take = self._allowances.try_acquire

        def counted(request: Any, context: grpc.ServicerContext) -> Any:
            if not take(account_of(context.peer())):
                self._admit(method, rule, request, context)  # raises, unless calls are left by now
            return behavior(request, context)

        return counted

    def _unary(
        self, method: str, rule: AccessRule, behavior: Callable[..., Any], is_upload: bool
    ) -> Callable[..., Any]:
        def guarded(request: Any, context: grpc.ServicerContext) -> Any:
            known = None if is_upload else request
            caller = self._admit(method, rule, known, context)
            is_audited = rule.audited and (not rule.audited_if or getattr(request, rule.audited_if))
            if not is_audited:
                return behavior(request, context)
            result, facts = Code.CONTAINER_INTERNAL_ERROR.value, {}
            try:
                answer = behavior(request, context)
                result, facts = DONE, outcome_of(answer)
            except SutureError as error:
                result = error.code.value
                raise
            finally:
                self._write(method, rule, caller, known, result, **facts)
            return answer

        return guarded

    def _stream(
        self, method: str, rule: AccessRule, behavior: Callable[..., Iterator[Any]]
    ) -> Callable[..., Iterator[Any]]:
        def guarded(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            caller = self._admit(method, rule, request, context)
            if not rule.audited:
                yield from behavior(request, context)
                return
            result = Code.CANCELLED.value  # the caller disconnected
            try:
                yield from behavior(request, context)
                result = DONE
            except SutureError as error:
                result = error.code.value
                raise
            finally:
                self._write(method, rule, caller, request, result)

        return guarded


def _closed(_request: Any, _context: grpc.ServicerContext) -> Any:
    raise RefusedError(Code.PERMISSION_DENIED, "no role is allowed to call this method")


def _like(handler: Any, behavior: Callable[..., Any]) -> _Handler:
    """Return a handler of the same kind as `handler` that calls `behavior`."""
    if handler.request_streaming:
        make: Any = grpc.stream_unary_rpc_method_handler
    elif handler.response_streaming:
        make = grpc.unary_stream_rpc_method_handler
    else:
        make = grpc.unary_unary_rpc_method_handler
    made: _Handler = make(behavior, handler.request_deserializer, handler.response_serializer)
    return made
