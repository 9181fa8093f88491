"""Client of the SCM, for datanodes, clients and operators.

Messages pass unchanged: callers read the fields that they need, and a second model would only be
more to maintain.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, Generic, Self, TypeVar

from agent.errors import Code, SutureError
from agent.rpc.calls.channel import call, call_again, open_channel, retry_while
from agent.rpc.security.tls import LOOPBACK_ONLY, Security
from agent.rpc.v1 import scm_pb2 as pb
from agent.rpc.v1 import scm_pb2_grpc

CALL_TIMEOUT_S: Final = 15.0
RECOVERY_TIMEOUT_S: Final = 600.0  # the SCM visits all containers and keys
JUDGING_TIMEOUT_S: Final = 600.0  # the SCM visits all replicas
EXPORT_TIMEOUT_S: Final = 600.0  # a snapshot of a large cluster takes minutes


Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Once(Generic[Request, Answer]):
    """A call of the SCM, named like its RPC, that is not retried."""

    _call = staticmethod(call)

    def __init__(self, timeout_s: float = 0.0) -> None:
        """`timeout_s` 0 = that of the client."""
        self._timeout_s = timeout_s

    def __set_name__(self, _owner: type, name: str) -> None:
        self._rpc = name.title().replace("_", "")

    def __get__(self, client: "ScmClient", _owner: type) -> Callable[[Request], Answer]:
        return partial(
            self._call,
            getattr(client.stub, self._rpc),
            timeout_s=self._timeout_s or client.timeout_s,
            party=client.party,
        )


class Repeated(Once[Request, Answer]):
    """A call of the SCM that is retried, because it may have effect twice."""

    _call = staticmethod(call_again)


class ScmClient:
    """An SCM, dialled on first use. Thread-safe."""

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        security: Security = LOOPBACK_ONLY,
    ) -> None:
        self.address = address
        self.party = f"the SCM at {address}"
        self.timeout_s = timeout_s
        self._channel = open_channel(address, security)
        self.stub = scm_pb2_grpc.ScmStub(self._channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def export_snapshot(
        self,
        request: pb.ExportSnapshotRequest,
        *,
        waits: Callable[[SutureError], None] = lambda _: None,
    ) -> pb.ExportSnapshotResponse:
        """Write a snapshot of the state; ask again while another one is being written. `waits`
        receives the first refusal."""

        def once() -> pb.ExportSnapshotResponse:
            answer: pb.ExportSnapshotResponse = call(
                self.stub.ExportSnapshot, request, timeout_s=EXPORT_TIMEOUT_S, party=self.party
            )
            return answer

        return retry_while(once, codes={Code.BUSY}, must_end=lambda: False, waits=waits)

    def show_deletions(self, request: pb.DeleteKeysRequest) -> pb.DeleteKeysResponse:
        """Return the keys that would be deleted, without deleting them."""
        assert request.dry_run, "a delete is not repeated"
        answer: pb.DeleteKeysResponse = call_again(
            self.stub.DeleteKeys, request, timeout_s=self.timeout_s, party=self.party
        )
        return answer

    # For datanodes, whose loop retries at its own pace: no retries here.
    register = Once[pb.RegisterRequest, pb.RegisterResponse]()
    """Join the cluster, or join it again."""
    heartbeat = Once[pb.HeartbeatRequest, pb.HeartbeatResponse]()
    """Send a report, and return the SCM's commands."""
    confirm_deletes = Repeated[pb.ConfirmDeletesRequest, pb.ConfirmDeletesResponse]()
    """Ask which deletes claimed by a peer were ordered."""

    # For clients.
    allocate_blocks = Once[pb.AllocateBlocksRequest, pb.AllocateBlocksResponse]()
    """Allocate blocks to write to."""
    commit_key = Repeated[pb.CommitKeyRequest, pb.CommitKeyResponse]()
    """Commit written blocks under their keys; a repeated commit has no effect."""
    lookup_key = Repeated[pb.LookupKeyRequest, pb.LookupKeyResponse]()
    """Return the blocks of a key, and their datanodes."""
    list_keys = Repeated[pb.ListKeysRequest, pb.ListKeysResponse]()
    """Return a page of keys."""
    finish_writes = Once[pb.FinishWritesRequest, pb.FinishWritesResponse]()
    """End a writer's session."""

    # For operators.
    list_nodes = Repeated[pb.ListNodesRequest, pb.ListNodesResponse]()
    """Return all datanodes."""
    list_container_infos = Repeated[pb.ListContainerInfosRequest, pb.ListContainerInfosResponse]()
    """Return a page of containers."""
    get_container_info = Repeated[pb.GetContainerInfoRequest, pb.GetContainerInfoResponse]()
    """Return one container and its replicas."""
    count_containers = Repeated[pb.CountContainersRequest, pb.CountContainersResponse]()
    """Return the numbers of containers by state."""
    close_containers = Once[pb.CloseContainersRequest, pb.ContainerDecisions]()
    """Order containers to close."""
    reconcile_containers = Once[pb.ReconcileContainersRequest, pb.ContainerDecisions]()
    """Order the replicas of containers to reconcile."""
    apply_plan = Once[pb.ApplyPlanRequest, pb.ContainerDecisions]()
    """Check a plan against the present state, and carry it out."""
    list_outcomes = Repeated[pb.ListOutcomesRequest, pb.ListOutcomesResponse]()
    """Return the outcomes of commands."""
    delete_keys = Once[pb.DeleteKeysRequest, pb.DeleteKeysResponse]()
    """Delete keys; return which were deleted and which did not exist."""
    replicate_containers = Once[pb.ReplicateContainersRequest, pb.ContainerDecisions]()
    """Order one more copy of each container."""
    delete_replicas = Once[pb.DeleteReplicasRequest, pb.ContainerDecisions]()
    """Order the deletion of a datanode's replicas of containers."""
    order_nodes = Once[pb.OrderNodesRequest, pb.NodeDecisions]()
    """Order datanodes to measure their volumes or to register again."""
    get_queues = Repeated[pb.GetQueuesRequest, pb.GetQueuesResponse]()
    """Return the queued commands of each datanode."""
    safe_mode = Once[pb.SafeModeRequest, pb.SafeModeResponse]()
    """Return whether the SCM is in safe mode, or end it."""
    remove_nodes = Once[pb.RemoveNodesRequest, pb.NodeDecisions](timeout_s=JUDGING_TIMEOUT_S)
    """Remove dead datanodes and their replica records."""
    forget_containers = Once[pb.ForgetContainersRequest, pb.ForgetContainersResponse]()
    """Mark missing containers as lost, or undo it."""
    set_operational_states = Once[pb.SetOperationalStatesRequest, pb.NodeDecisions](
        timeout_s=JUDGING_TIMEOUT_S
    )
    """Change datanodes' operational states: decommission, maintenance, in service."""
    get_report = Repeated[pb.GetReportRequest, pb.GetReportResponse]()
    """Return the replication manager's report."""
    list_departures = Repeated[pb.ListDeparturesRequest, pb.ListDeparturesResponse]()
    """Return the datanodes that are not in service."""
    foresee = Repeated[pb.ForeseeRequest, pb.ForeseeResponse]()
    """Return the state that would follow if datanodes or volumes were off."""
    hold_containers = Once[pb.HoldContainersRequest, pb.ContainerDecisions]()
    """Suppress containers, exclude replicas, or release them."""
    list_holds = Repeated[pb.ListHoldsRequest, pb.ListHoldsResponse]()
    """Return the suppressed containers and excluded replicas."""
    list_anchors = Repeated[pb.ListAnchorsRequest, pb.ListAnchorsResponse]()
    """Return the stored heads of verification logs."""
    balance = Once[pb.BalanceRequest, pb.BalanceResponse]()
    """Start, stop or show the balancing of replicas from full datanodes to empty ones."""
    list_container_keys = Repeated[pb.ListContainerKeysRequest, pb.ListContainerKeysResponse]()
    """Return a page of keys that have blocks in some containers."""
    get_recovery = Once[pb.GetRecoveryRequest, pb.GetRecoveryResponse](timeout_s=RECOVERY_TIMEOUT_S)
    """Return what to investigate after a restore."""
    recover = Once[pb.RecoverRequest, pb.RecoverResponse](timeout_s=RECOVERY_TIMEOUT_S)
    """Restore containers and keys that a restored control plane does not know."""
