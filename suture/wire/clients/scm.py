"""Client of the SCM for datanodes, clients and operators.

The methods take and return protobuf messages. Other classes for the same data would only add
maintenance.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Final, Generic, Self, TypeVar, overload

from suture.errors import Code, SutureError
from suture.wire.clients.channel import call, call_again, open_channel, retry_while
from suture.wire.mapping.rpc_services import SCM, Stub
from suture.wire.security.tls import LOOPBACK_ONLY, Security
from suture.wire.v1 import container_pb2
from suture.wire.v1 import scm_pb2 as pb

CALL_TIMEOUT_S: Final = 15.0
RECOVERY_TIMEOUT_S: Final = 600.0  # the SCM visits all containers and keys
JUDGING_TIMEOUT_S: Final = 600.0  # the SCM visits all replicas
EXPORT_TIMEOUT_S: Final = 600.0  # a snapshot of a large cluster takes minutes


Rpcs: Final = SimpleNamespace(**{name: name for name in SCM.methods_by_name})
Request = TypeVar("Request")
Answer = TypeVar("Answer")


class ScmCall(Generic[Request, Answer]):
    """A method of `ScmClient` that makes one call to the SCM, without retries."""

    _call = staticmethod(call)

    def __init__(self, rpc: str, timeout_s: float = 0.0) -> None:
        """Create the method for the RPC with the name `rpc`. If `timeout_s` is 0, the timeout of
        the client is used."""
        self._rpc = rpc
        self._timeout_s = timeout_s

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: "ScmClient", owner: type) -> Callable[[Request], Answer]: ...
    def __get__(
        self, client: "ScmClient | None", owner: type
    ) -> Self | Callable[[Request], Answer]:
        if client is None:
            return self
        return partial(
            self._call,
            getattr(client.stub, self._rpc),
            timeout_s=self._timeout_s or client.timeout_s,
            party=client.party,
        )


class RetriedCall(ScmCall[Request, Answer]):
    """A method of `ScmClient` that makes a call to the SCM with retries. The RPC must be
    idempotent."""

    _call = staticmethod(call_again)


class ScmClient:
    """Client of one SCM. The connection is opened on first use. Thread-safe."""

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
        self.stub = Stub(self._channel, SCM)

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
        """Make the SCM write a snapshot of its state, and return the response. Retry while the SCM
        is writing another snapshot. `waits` is called with the first refusal."""

        def once() -> pb.ExportSnapshotResponse:
            answer: pb.ExportSnapshotResponse = call(
                self.stub.ExportSnapshot, request, timeout_s=EXPORT_TIMEOUT_S, party=self.party
            )
            return answer

        return retry_while(once, codes={Code.BUSY}, must_end=lambda: False, waits=waits)

    def show_deletions(self, request: pb.DeleteKeysRequest) -> pb.DeleteKeysResponse:
        """Return the keys that a delete would remove. No key is deleted."""
        assert request.dry_run, "a delete is not repeated"
        answer: pb.DeleteKeysResponse = call_again(
            self.stub.DeleteKeys, request, timeout_s=self.timeout_s, party=self.party
        )
        return answer

    # For datanodes. These calls are not retried here, because the datanode's loop retries at its
    # own pace.

    # Join the cluster, or join it again.
    register = ScmCall[pb.RegisterRequest, pb.RegisterResponse](Rpcs.Register)
    # Send a report, and return the SCM's commands.
    heartbeat = ScmCall[pb.HeartbeatRequest, pb.HeartbeatResponse](Rpcs.Heartbeat)
    # Return which of the deletes that a peer claims were ordered.
    confirm_deletes = RetriedCall[pb.ConfirmDeletesRequest, pb.ConfirmDeletesResponse](
        Rpcs.ConfirmDeletes
    )

    # For clients.

    # Allocate blocks to write to.
    allocate_blocks = ScmCall[pb.AllocateBlocksRequest, pb.AllocateBlocksResponse](
        Rpcs.AllocateBlocks
    )
    # Commit written blocks under their keys; a repeated commit has no effect.
    commit_key = RetriedCall[pb.CommitKeyRequest, pb.CommitKeyResponse](Rpcs.CommitKey)
    # Return the blocks of a key, and their datanodes.
    lookup_key = RetriedCall[pb.LookupKeyRequest, pb.LookupKeyResponse](Rpcs.LookupKey)
    # Return a page of keys.
    list_keys = RetriedCall[pb.ListKeysRequest, pb.ListKeysResponse](Rpcs.ListKeys)
    # End a writer's session.
    end_write_session = ScmCall[pb.EndWriteSessionRequest, pb.EndWriteSessionResponse](
        Rpcs.EndWriteSession
    )

    # For operators.

    # Return all datanodes.
    list_nodes = RetriedCall[pb.ListNodesRequest, pb.ListNodesResponse](Rpcs.ListNodes)
    # Return a page of containers.
    list_container_infos = RetriedCall[pb.ListContainerInfosRequest, pb.ListContainerInfosResponse](
        Rpcs.ListContainerInfos
    )
    # Return one container and its replicas.
    get_container_info = RetriedCall[pb.GetContainerInfoRequest, pb.GetContainerInfoResponse](
        Rpcs.GetContainerInfo
    )
    # Return the numbers of containers by state.
    count_containers = RetriedCall[pb.CountContainersRequest, pb.CountContainersResponse](
        Rpcs.CountContainers
    )
    # Order containers to close.
    close_containers = ScmCall[pb.CloseContainersRequest, pb.ContainerDecisions](
        Rpcs.CloseContainers
    )
    # Order the replicas of containers to reconcile.
    reconcile_containers = ScmCall[pb.ReconcileContainersRequest, pb.ContainerDecisions](
        Rpcs.ReconcileContainers
    )
    # Check a plan against the present state, and carry it out.
    apply_plan = ScmCall[pb.ApplyPlanRequest, pb.ContainerDecisions](Rpcs.ApplyPlan)
    # Return the outcomes of commands.
    list_outcomes = RetriedCall[pb.ListOutcomesRequest, pb.ListOutcomesResponse](Rpcs.ListOutcomes)
    # Delete keys; return which were deleted and which did not exist.
    delete_keys = ScmCall[pb.DeleteKeysRequest, pb.DeleteKeysResponse](Rpcs.DeleteKeys)
    # Order one more copy of each container.
    replicate_containers = ScmCall[pb.ReplicateContainersRequest, pb.ContainerDecisions](
        Rpcs.ReplicateContainers
    )
    # Order the deletion of a datanode's replicas of containers.
    delete_replicas = ScmCall[pb.DeleteReplicasRequest, pb.ContainerDecisions](Rpcs.DeleteReplicas)
    # Order datanodes to measure their volumes or to register again.
    command_nodes = ScmCall[pb.CommandNodesRequest, pb.NodeDecisions](Rpcs.CommandNodes)
    # Return the queued commands of each datanode.
    get_queues = RetriedCall[pb.GetQueuesRequest, pb.GetQueuesResponse](Rpcs.GetQueues)
    # Return whether the SCM is in safe mode, or end it.
    safe_mode = ScmCall[pb.SafeModeRequest, pb.SafeModeResponse](Rpcs.SafeMode)
    # Remove dead datanodes and their replica records.
    remove_nodes = ScmCall[pb.RemoveNodesRequest, pb.NodeDecisions](
        Rpcs.RemoveNodes, JUDGING_TIMEOUT_S
    )
    # Mark missing containers as lost, or undo it.
    mark_containers_lost = ScmCall[pb.MarkContainersLostRequest, pb.MarkContainersLostResponse](
        Rpcs.MarkContainersLost
    )
    # Change datanodes' operational states: decommission, maintenance, in service.
    set_operational_states = ScmCall[pb.SetOperationalStatesRequest, pb.NodeDecisions](
        Rpcs.SetOperationalStates, JUDGING_TIMEOUT_S
    )
    # Return the replication manager's report.
    get_report = RetriedCall[pb.GetReportRequest, pb.GetReportResponse](Rpcs.GetReport)
    # Return the datanodes that are not in service.
    list_decommissions = RetriedCall[pb.ListDecommissionsRequest, pb.ListDecommissionsResponse](
        Rpcs.ListDecommissions
    )
    # Predict the cluster's state for the case that these datanodes or volumes are off.
    check_stop = RetriedCall[pb.CheckStopRequest, pb.CheckStopResponse](Rpcs.CheckStop)
    # Suppress containers, exclude replicas, or release them.
    hold_containers = ScmCall[pb.HoldContainersRequest, pb.ContainerDecisions](Rpcs.HoldContainers)
    # Change the settings: pauses, rates and windows of work.
    change_settings = ScmCall[pb.ChangeSettingsRequest, pb.SettingsResponse](Rpcs.ChangeSettings)
    # Return the settings that can be changed, and the SCM's options.
    list_settings = RetriedCall[pb.ListSettingsRequest, pb.SettingsResponse](Rpcs.ListSettings)
    # Return the suppressed containers and excluded replicas.
    list_holds = RetriedCall[pb.ListHoldsRequest, pb.ListHoldsResponse](Rpcs.ListHolds)
    # Return the stored heads of verification logs.
    list_anchors = RetriedCall[pb.ListAnchorsRequest, pb.ListAnchorsResponse](Rpcs.ListAnchors)
    # Return the audit log of what people ordered.
    list_audit = RetriedCall[container_pb2.ListAuditRequest, container_pb2.ListAuditResponse](
        Rpcs.ListAudit
    )
    # Start, stop or show the balancing of replicas from full datanodes to empty ones.
    balance = ScmCall[pb.BalanceRequest, pb.BalanceResponse](Rpcs.Balance)
    # Return a page of keys that have blocks in some containers.
    list_container_keys = RetriedCall[pb.ListContainerKeysRequest, pb.ListContainerKeysResponse](
        Rpcs.ListContainerKeys
    )
    # Return what to investigate after a restore.
    get_restore_recovery = ScmCall[pb.GetRestoreRecoveryRequest, pb.GetRestoreRecoveryResponse](
        Rpcs.GetRestoreRecovery, RECOVERY_TIMEOUT_S
    )
    # Restore containers and keys that a restored control plane does not know.
    recover_from_restore = ScmCall[pb.RecoverFromRestoreRequest, pb.RecoverFromRestoreResponse](
        Rpcs.RecoverFromRestore, RECOVERY_TIMEOUT_S
    )
