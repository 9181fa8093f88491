"""Client of the SCM, for datanodes, clients and operators.

Messages pass unchanged: callers read the fields that they need, and a second model would only be
more to maintain.
"""

from collections.abc import Callable
from typing import Any, Final, Self

from agent.errors import Code, SutureError
from agent.rpc.calls.channel import Method, call, call_again, open_channel, retry_while
from agent.rpc.security.tls import LOOPBACK_ONLY, Security
from agent.rpc.v1 import scm_pb2 as pb
from agent.rpc.v1 import scm_pb2_grpc

CALL_TIMEOUT_S: Final = 15.0
RECOVERY_TIMEOUT_S: Final = 600.0  # the SCM visits all containers and keys
JUDGING_TIMEOUT_S: Final = 600.0  # the SCM visits all replicas
EXPORT_TIMEOUT_S: Final = 600.0  # a snapshot of a large cluster takes minutes


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
        self._party = f"the SCM at {address}"
        self._timeout_s = timeout_s
        self._channel = open_channel(address, security)
        self._stub = scm_pb2_grpc.ScmStub(self._channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    # For datanodes, whose loop retries at its own pace: no retries here.

    def register(self, request: pb.RegisterRequest) -> pb.RegisterResponse:
        """Join the cluster, or join it again."""
        answer: pb.RegisterResponse = self._once(self._stub.Register, request)
        return answer

    def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        """Send a report, and return the SCM's commands."""
        answer: pb.HeartbeatResponse = self._once(self._stub.Heartbeat, request)
        return answer

    def confirm_deletes(self, request: pb.ConfirmDeletesRequest) -> pb.ConfirmDeletesResponse:
        """Ask which deletes claimed by a peer were ordered."""
        answer: pb.ConfirmDeletesResponse = self._repeated(self._stub.ConfirmDeletes, request)
        return answer

    # For clients.

    def allocate_blocks(self, request: pb.AllocateBlocksRequest) -> pb.AllocateBlocksResponse:
        """Allocate blocks to write to."""
        answer: pb.AllocateBlocksResponse = self._once(self._stub.AllocateBlocks, request)
        return answer

    def commit_key(self, request: pb.CommitKeyRequest) -> pb.CommitKeyResponse:
        """Commit written blocks under their keys; a repeated commit has no effect."""
        answer: pb.CommitKeyResponse = self._repeated(self._stub.CommitKey, request)
        return answer

    def lookup_key(self, request: pb.LookupKeyRequest) -> pb.LookupKeyResponse:
        """Return the blocks of a key, and their datanodes."""
        answer: pb.LookupKeyResponse = self._repeated(self._stub.LookupKey, request)
        return answer

    def list_keys(self, request: pb.ListKeysRequest) -> pb.ListKeysResponse:
        """Return a page of keys."""
        answer: pb.ListKeysResponse = self._repeated(self._stub.ListKeys, request)
        return answer

    def finish_writes(self, request: pb.FinishWritesRequest) -> pb.FinishWritesResponse:
        """End a writer's session."""
        answer: pb.FinishWritesResponse = self._once(self._stub.FinishWrites, request)
        return answer

    # For operators.

    def list_nodes(self, request: pb.ListNodesRequest) -> pb.ListNodesResponse:
        """Return all datanodes."""
        answer: pb.ListNodesResponse = self._repeated(self._stub.ListNodes, request)
        return answer

    def list_container_infos(
        self, request: pb.ListContainerInfosRequest
    ) -> pb.ListContainerInfosResponse:
        """Return a page of containers."""
        answer: pb.ListContainerInfosResponse = self._repeated(
            self._stub.ListContainerInfos, request
        )
        return answer

    def get_container_info(
        self, request: pb.GetContainerInfoRequest
    ) -> pb.GetContainerInfoResponse:
        """Return one container and its replicas."""
        answer: pb.GetContainerInfoResponse = self._repeated(self._stub.GetContainerInfo, request)
        return answer

    def count_containers(self, request: pb.CountContainersRequest) -> pb.CountContainersResponse:
        """Return the numbers of containers by state."""
        answer: pb.CountContainersResponse = self._repeated(self._stub.CountContainers, request)
        return answer

    def close_containers(self, request: pb.CloseContainersRequest) -> pb.ContainerDecisions:
        """Order containers to close."""
        answer: pb.ContainerDecisions = self._once(self._stub.CloseContainers, request)
        return answer

    def reconcile_containers(self, request: pb.ReconcileContainersRequest) -> pb.ContainerDecisions:
        """Order the replicas of containers to reconcile."""
        answer: pb.ContainerDecisions = self._once(self._stub.ReconcileContainers, request)
        return answer

    def apply_plan(self, request: pb.ApplyPlanRequest) -> pb.ContainerDecisions:
        """Check a plan against the present state, and carry it out."""
        answer: pb.ContainerDecisions = self._once(self._stub.ApplyPlan, request)
        return answer

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
                self._stub.ExportSnapshot, request, timeout_s=EXPORT_TIMEOUT_S, party=self._party
            )
            return answer

        return retry_while(once, codes={Code.BUSY}, must_end=lambda: False, waits=waits)

    def list_outcomes(self, request: pb.ListOutcomesRequest) -> pb.ListOutcomesResponse:
        """Return the outcomes of commands."""
        answer: pb.ListOutcomesResponse = self._repeated(self._stub.ListOutcomes, request)
        return answer

    def delete_keys(self, request: pb.DeleteKeysRequest) -> pb.DeleteKeysResponse:
        """Delete keys; return which were deleted and which did not exist."""
        answer: pb.DeleteKeysResponse = self._once(self._stub.DeleteKeys, request)
        return answer

    def show_deletions(self, request: pb.DeleteKeysRequest) -> pb.DeleteKeysResponse:
        """Return the keys that would be deleted, without deleting them."""
        assert request.dry_run, "a delete is not repeated"
        answer: pb.DeleteKeysResponse = self._repeated(self._stub.DeleteKeys, request)
        return answer

    def replicate_containers(self, request: pb.ReplicateContainersRequest) -> pb.ContainerDecisions:
        """Order one more copy of each container."""
        answer: pb.ContainerDecisions = self._once(self._stub.ReplicateContainers, request)
        return answer

    def delete_replicas(self, request: pb.DeleteReplicasRequest) -> pb.ContainerDecisions:
        """Order the deletion of a datanode's replicas of containers."""
        answer: pb.ContainerDecisions = self._once(self._stub.DeleteReplicas, request)
        return answer

    def order_nodes(self, request: pb.OrderNodesRequest) -> pb.NodeDecisions:
        """Order datanodes to measure their volumes or to register again."""
        answer: pb.NodeDecisions = self._once(self._stub.OrderNodes, request)
        return answer

    def get_queues(self, request: pb.GetQueuesRequest) -> pb.GetQueuesResponse:
        """Return the queued commands of each datanode."""
        answer: pb.GetQueuesResponse = self._repeated(self._stub.GetQueues, request)
        return answer

    def safe_mode(self, request: pb.SafeModeRequest) -> pb.SafeModeResponse:
        """Return whether the SCM is in safe mode, or end it."""
        answer: pb.SafeModeResponse = self._once(self._stub.SafeMode, request)
        return answer

    def remove_nodes(self, request: pb.RemoveNodesRequest) -> pb.NodeDecisions:
        """Remove dead datanodes and their replica records."""
        answer: pb.NodeDecisions = call(
            self._stub.RemoveNodes, request, timeout_s=JUDGING_TIMEOUT_S, party=self._party
        )
        return answer

    def forget_containers(self, request: pb.ForgetContainersRequest) -> pb.ForgetContainersResponse:
        """Mark missing containers as lost, or undo it."""
        answer: pb.ForgetContainersResponse = self._once(self._stub.ForgetContainers, request)
        return answer

    def set_operational_states(self, request: pb.SetOperationalStatesRequest) -> pb.NodeDecisions:
        """Change datanodes' operational states: decommission, maintenance, in service."""
        answer: pb.NodeDecisions = call(
            self._stub.SetOperationalStates, request, timeout_s=JUDGING_TIMEOUT_S, party=self._party
        )
        return answer

    def get_report(self, request: pb.GetReportRequest) -> pb.GetReportResponse:
        """Return the replication manager's report."""
        answer: pb.GetReportResponse = self._repeated(self._stub.GetReport, request)
        return answer

    def list_departures(self, request: pb.ListDeparturesRequest) -> pb.ListDeparturesResponse:
        """Return the datanodes that are not in service."""
        answer: pb.ListDeparturesResponse = self._repeated(self._stub.ListDepartures, request)
        return answer

    def foresee(self, request: pb.ForeseeRequest) -> pb.ForeseeResponse:
        """Return the state that would follow if datanodes or volumes were off."""
        answer: pb.ForeseeResponse = self._repeated(self._stub.Foresee, request)
        return answer

    def hold_containers(self, request: pb.HoldContainersRequest) -> pb.ContainerDecisions:
        """Suppress containers, exclude replicas, or release them."""
        answer: pb.ContainerDecisions = self._once(self._stub.HoldContainers, request)
        return answer

    def list_holds(self, request: pb.ListHoldsRequest) -> pb.ListHoldsResponse:
        """Return the suppressed containers and excluded replicas."""
        answer: pb.ListHoldsResponse = self._repeated(self._stub.ListHolds, request)
        return answer

    def list_anchors(self, request: pb.ListAnchorsRequest) -> pb.ListAnchorsResponse:
        """Return the stored heads of verification logs."""
        answer: pb.ListAnchorsResponse = self._repeated(self._stub.ListAnchors, request)
        return answer

    def balance(self, request: pb.BalanceRequest) -> pb.BalanceResponse:
        """Start, stop or show the balancing of replicas from full datanodes to empty ones."""
        answer: pb.BalanceResponse = self._once(self._stub.Balance, request)
        return answer

    def list_container_keys(
        self, request: pb.ListContainerKeysRequest
    ) -> pb.ListContainerKeysResponse:
        """Return a page of keys that have blocks in some containers."""
        answer: pb.ListContainerKeysResponse = self._repeated(self._stub.ListContainerKeys, request)
        return answer

    def get_recovery(self, request: pb.GetRecoveryRequest) -> pb.GetRecoveryResponse:
        """Return what to investigate after a restore."""
        answer: pb.GetRecoveryResponse = call(
            self._stub.GetRecovery, request, timeout_s=RECOVERY_TIMEOUT_S, party=self._party
        )
        return answer

    def recover(self, request: pb.RecoverRequest) -> pb.RecoverResponse:
        """Restore containers and keys that a restored control plane does not know."""
        answer: pb.RecoverResponse = call(
            self._stub.Recover, request, timeout_s=RECOVERY_TIMEOUT_S, party=self._party
        )
        return answer

    def _once(self, method: Method, request: object) -> Any:  # the method's answer
        return call(method, request, timeout_s=self._timeout_s, party=self._party)

    def _repeated(self, method: Method, request: object) -> Any:  # the method's answer
        return call_again(method, request, timeout_s=self._timeout_s, party=self._party)
