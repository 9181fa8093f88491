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


class ScmCall(Generic[Request, Answer]):
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


class IdempotentCall(ScmCall[Request, Answer]):
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

    # Join the cluster, or join it again.
    register = ScmCall[pb.RegisterRequest, pb.RegisterResponse]()
    # Send a report, and return the SCM's commands.
    heartbeat = ScmCall[pb.HeartbeatRequest, pb.HeartbeatResponse]()
    # Ask which deletes claimed by a peer were ordered.
    confirm_deletes = IdempotentCall[pb.ConfirmDeletesRequest, pb.ConfirmDeletesResponse]()

    # For clients.

    # Allocate blocks to write to.
    allocate_blocks = ScmCall[pb.AllocateBlocksRequest, pb.AllocateBlocksResponse]()
    # Commit written blocks under their keys; a repeated commit has no effect.
    commit_key = IdempotentCall[pb.CommitKeyRequest, pb.CommitKeyResponse]()
    # Return the blocks of a key, and their datanodes.
    lookup_key = IdempotentCall[pb.LookupKeyRequest, pb.LookupKeyResponse]()
    # Return a page of keys.
    list_keys = IdempotentCall[pb.ListKeysRequest, pb.ListKeysResponse]()
    # End a writer's session.
    finish_writes = ScmCall[pb.FinishWritesRequest, pb.FinishWritesResponse]()

    # For operators.

    # Return all datanodes.
    list_nodes = IdempotentCall[pb.ListNodesRequest, pb.ListNodesResponse]()
    # Return a page of containers.
    list_container_infos = IdempotentCall[
        pb.ListContainerInfosRequest, pb.ListContainerInfosResponse
    ]()
    # Return one container and its replicas.
    get_container_info = IdempotentCall[pb.GetContainerInfoRequest, pb.GetContainerInfoResponse]()
    # Return the numbers of containers by state.
    count_containers = IdempotentCall[pb.CountContainersRequest, pb.CountContainersResponse]()
    # Order containers to close.
    close_containers = ScmCall[pb.CloseContainersRequest, pb.ContainerDecisions]()
    # Order the replicas of containers to reconcile.
    reconcile_containers = ScmCall[pb.ReconcileContainersRequest, pb.ContainerDecisions]()
    # Check a plan against the present state, and carry it out.
    apply_plan = ScmCall[pb.ApplyPlanRequest, pb.ContainerDecisions]()
    # Return the outcomes of commands.
    list_outcomes = IdempotentCall[pb.ListOutcomesRequest, pb.ListOutcomesResponse]()
    # Delete keys; return which were deleted and which did not exist.
    delete_keys = ScmCall[pb.DeleteKeysRequest, pb.DeleteKeysResponse]()
    # Order one more copy of each container.
    replicate_containers = ScmCall[pb.ReplicateContainersRequest, pb.ContainerDecisions]()
    # Order the deletion of a datanode's replicas of containers.
    delete_replicas = ScmCall[pb.DeleteReplicasRequest, pb.ContainerDecisions]()
    # Order datanodes to measure their volumes or to register again.
    order_nodes = ScmCall[pb.OrderNodesRequest, pb.NodeDecisions]()
    # Return the queued commands of each datanode.
    get_queues = IdempotentCall[pb.GetQueuesRequest, pb.GetQueuesResponse]()
    # Return whether the SCM is in safe mode, or end it.
    safe_mode = ScmCall[pb.SafeModeRequest, pb.SafeModeResponse]()
    # Remove dead datanodes and their replica records.
    remove_nodes = ScmCall[pb.RemoveNodesRequest, pb.NodeDecisions](timeout_s=JUDGING_TIMEOUT_S)
    # Mark missing containers as lost, or undo it.
    forget_containers = ScmCall[pb.ForgetContainersRequest, pb.ForgetContainersResponse]()
    # Change datanodes' operational states: decommission, maintenance, in service.
    set_operational_states = ScmCall[pb.SetOperationalStatesRequest, pb.NodeDecisions](
        timeout_s=JUDGING_TIMEOUT_S
    )
    # Return the replication manager's report.
    get_report = IdempotentCall[pb.GetReportRequest, pb.GetReportResponse]()
    # Return the datanodes that are not in service.
    list_departures = IdempotentCall[pb.ListDeparturesRequest, pb.ListDeparturesResponse]()
    # Return the state that would follow if datanodes or volumes were off.
    foresee = IdempotentCall[pb.ForeseeRequest, pb.ForeseeResponse]()
    # Suppress containers, exclude replicas, or release them.
    hold_containers = ScmCall[pb.HoldContainersRequest, pb.ContainerDecisions]()
    # Return the suppressed containers and excluded replicas.
    list_holds = IdempotentCall[pb.ListHoldsRequest, pb.ListHoldsResponse]()
    # Return the stored heads of verification logs.
    list_anchors = IdempotentCall[pb.ListAnchorsRequest, pb.ListAnchorsResponse]()
    # Start, stop or show the balancing of replicas from full datanodes to empty ones.
    balance = ScmCall[pb.BalanceRequest, pb.BalanceResponse]()
    # Return a page of keys that have blocks in some containers.
    list_container_keys = IdempotentCall[
        pb.ListContainerKeysRequest, pb.ListContainerKeysResponse
    ]()
    # Return what to investigate after a restore.
    get_recovery = ScmCall[pb.GetRecoveryRequest, pb.GetRecoveryResponse](
        timeout_s=RECOVERY_TIMEOUT_S
    )
    # Restore containers and keys that a restored control plane does not know.
    recover = ScmCall[pb.RecoverRequest, pb.RecoverResponse](timeout_s=RECOVERY_TIMEOUT_S)
