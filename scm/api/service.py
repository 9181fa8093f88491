"""The RPCs of suture.v1.Scm. Each parses a request and builds a response."""

from typing import Final

from grpc import ServicerContext as Context

from merkle.replica import ID_MAX
from scm.administration.decommission import LEAVING, RESTING
from scm.api import datanode_wire, recovering, responses, shutdown_impact_wire, wire
from scm.api.calls.control import ControlPlane
from scm.api.metrics import VERSION
from suture.wire.mapping.codec import malformed, parse_container_id, parse_int
from suture.wire.v1 import scm_pb2 as pb

ANSWER_BYTES_MAX: Final = 8 * 1024**2  # further outcomes are left for the next call
PAGE_MAX: Final = 1_000
ITERATIONS_DEFAULT: Final = 10  # iterations of the balancer (Ozone's default)


class ScmService:
    """The RPCs of the control plane.

    The methods raise SutureErrors. `suture.wire.mapping.errors.ErrorStatusMiddleware` converts
    these errors to gRPC statuses.
    """

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._datanodes, self._clients = control.datanodes, control.clients
        self._queries = control.queries

    # Datanodes.

    def Register(self, request: pb.RegisterRequest) -> pb.RegisterResponse:
        """Register a datanode. The datanode must report all its replicas afterwards."""
        self._datanodes.register(datanode_wire.registration_from(request))
        return pb.RegisterResponse(
            cluster_id=self._control.state.cluster_id,
            heartbeat_interval_ms=self._control.options.heartbeat_interval_ms,
        )

    def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatResponse:
        """Apply the reports of a datanode, and return its commands."""
        call = datanode_wire.heartbeat_from(request, now_ms=self._control.clock.wall_ms())
        answer = self._datanodes.heartbeat(call, context.is_active)
        now_ms = self._control.clock.wall_ms()
        return responses.heartbeat_response(answer, self._control.reported_start, now_ms=now_ms)

    def ConfirmDeletes(self, request: pb.ConfirmDeletesRequest) -> pb.ConfirmDeletesResponse:
        """Return which blocks were ordered to be deleted, and which blocks a key needs.

        The request has the ids of the blocks that a peer of the datanode reports as deleted.
        """
        claimed = datanode_wire.claimed_deletes_from(request)
        ordered, kept = self._datanodes.confirm_deletes(*claimed)
        return pb.ConfirmDeletesResponse(
            ordered_local_ids=sorted(ordered), kept_local_ids=sorted(kept)
        )

    # Clients.

    def AllocateBlocks(self, request: pb.AllocateBlocksRequest) -> pb.AllocateBlocksResponse:
        """Allocate blocks to a writer."""
        client_id = wire.client_id_from(request.client_id)
        return responses.allocation_response(
            self._clients.allocate(
                client_id,
                wire.sizes_from(request),
                wire.new_keys_from(request),
                scheme=wire.scheme_from(request),
            ),
            renew_ms=self._clients.renew_ms,
        )

    def CommitKey(self, request: pb.CommitKeyRequest) -> pb.CommitKeyResponse:
        """Record keys with their blocks. Record all of them or none."""
        self._clients.commit(
            wire.client_id_from(request.client_id),
            wire.keys_from(request.keys),
            may_replace=request.replace,
            failed=wire.failed_from(request.failed),
        )
        return pb.CommitKeyResponse()

    def LookupKey(self, request: pb.LookupKeyRequest) -> pb.LookupKeyResponse:
        """Return the blocks of a key, and the locations of its containers."""
        key, containers = self._clients.lookup(wire.parse_key(request.key, "key"))
        return responses.lookup_response(key, containers)

    def ListKeys(self, request: pb.ListKeysRequest) -> pb.ListKeysResponse:
        """Return a page of keys, sorted by name."""
        keys, next_start_after = self._clients.list_keys(
            prefix=wire.cut(request.prefix),
            start_after=wire.cut(request.start_after),
            count=_page_size(request.count),
            container_ids=request.container_ids,
        )
        return pb.ListKeysResponse(
            keys=[responses.key_message(key, self._clients.lost_of(key)) for key in keys],
            next_start_after=next_start_after,
        )

    def EndWriteSession(self, request: pb.EndWriteSessionRequest) -> pb.EndWriteSessionResponse:
        """End a writer's session."""
        client_id = wire.client_id_from(request.client_id)
        self._clients.finish(client_id, close=request.close)
        return pb.EndWriteSessionResponse()

    # Operators.

    def ListNodes(self, _request: pb.ListNodesRequest) -> pb.ListNodesResponse:
        """Return all datanodes with their health."""
        return pb.ListNodesResponse(
            nodes=[responses.node_message(view) for view in self._queries.nodes()],
            cluster_id=self._control.state.cluster_id,
            version=VERSION,
            started_at_ms=self._control.started_at_ms,
        )

    def ListContainerInfos(
        self, request: pb.ListContainerInfosRequest
    ) -> pb.ListContainerInfosResponse:
        """Return a page of containers with their replicas, sorted by container id."""
        start = parse_int(request.start_container_id, "start_container_id", low=0, high=ID_MAX)
        views, next_id = self._control.views.containers(start, _page_size(request.count))
        return pb.ListContainerInfosResponse(
            containers=[responses.container_message(view) for view in views],
            next_container_id=next_id,
        )

    def GetContainerInfo(self, request: pb.GetContainerInfoRequest) -> pb.GetContainerInfoResponse:
        """Return one container with its replicas."""
        view = self._control.views.container(parse_container_id(request.container_id))
        return pb.GetContainerInfoResponse(container=responses.container_message(view))

    def CountContainers(self, _request: pb.CountContainersRequest) -> pb.CountContainersResponse:
        """Return the number of containers by condition."""
        counts = self._queries.count_containers()
        _look, judgement = self._queries.judgement()
        settings = self._control.run_time.settings()
        return responses.counts_message(counts, judgement, settings)

    def CloseContainers(self, request: pb.CloseContainersRequest) -> pb.ContainerDecisions:
        """Close containers now, and return one decision for each container."""
        ids = wire.container_ids_from(request.container_ids)
        worlds = wire.fingerprints_from(request.worlds, ids)
        return responses.decisions_message(
            self._control.closures.close_containers(
                ids, worlds=worlds, force=request.force, dry_run=request.dry_run
            )
        )

    def ReconcileContainers(self, request: pb.ReconcileContainersRequest) -> pb.ContainerDecisions:
        """Order a reconcile of each eligible container, and return one decision for each."""
        ids = wire.container_ids_from(request.container_ids)
        worlds = wire.fingerprints_from(request.worlds, ids)
        return responses.decisions_message(
            self._control.admin.reconcile(ids, worlds=worlds, dry_run=request.dry_run)
        )

    def ApplyPlan(self, request: pb.ApplyPlanRequest) -> pb.ContainerDecisions:
        """Order the actions of the plan rows that still match the state."""
        rows = wire.plan_rows_from(request)
        worlds = wire.fingerprints_from(request.worlds, rows)
        return responses.decisions_message(
            self._control.plans.apply_plan(rows, worlds=worlds, dry_run=request.dry_run)
        )

    def ExportSnapshot(self, _request: pb.ExportSnapshotRequest) -> pb.ExportSnapshotResponse:
        """Write a snapshot of the state for the Spark job."""
        exported = self._queries.export_snapshot()
        return pb.ExportSnapshotResponse(
            snapshot_id=exported.snapshot_id,
            path=exported.place,
            container_count=exported.rows["containers"],
            replica_count=exported.rows["replicas"],
        )

    def ListOutcomes(self, request: pb.ListOutcomesRequest) -> pb.ListOutcomesResponse:
        """Return outcomes of commands, and the ids of pending commands.

        The size of the response is limited, so some outcomes may be missing. If a requested command
        is neither in the outcomes nor pending, the caller requests its outcome again. To continue
        with older outcomes, the caller passes the last returned id.
        """
        command_ids = wire.command_ids_from(request.command_ids)
        before_id = wire.before_id_from(request)
        outcomes, pending = self._queries.outcomes(
            command_ids, _page_size(request.count), before_id=before_id
        )
        response = pb.ListOutcomesResponse(pending_command_ids=pending)
        size_bytes = 0
        for outcome in outcomes:
            size_bytes += len(outcome.detail) + len(outcome.message)
            if size_bytes > ANSWER_BYTES_MAX:
                break
            response.outcomes.append(responses.outcome_message(outcome))
        return response

    def DeleteKeys(self, request: pb.DeleteKeysRequest, context: Context) -> pb.DeleteKeysResponse:
        """Delete keys at once. Their blocks are deleted in the background."""
        names = wire.doomed_keys_from(request)
        return responses.deletions_message(
            self._control.deletions.delete_keys(
                names,
                wire.fingerprints_from(request.worlds, names),
                dry_run=request.dry_run,
                is_wanted=context.is_active,
            )
        )

    def ReplicateContainers(self, request: pb.ReplicateContainersRequest) -> pb.ContainerDecisions:
        """Order one more copy of each container."""
        ids = wire.container_ids_from(request.container_ids)
        target = request.target_datanode_id
        decisions = self._control.admin.replicate(
            ids,
            target_id=wire.parse_name(target, "target_datanode_id") if target else "",
            worlds=wire.fingerprints_from(request.worlds, ids),
            dry_run=request.dry_run,
        )
        return responses.decisions_message(decisions)

    def DeleteReplicas(self, request: pb.DeleteReplicasRequest) -> pb.ContainerDecisions:
        """Order the removal of the replicas of these containers from one datanode."""
        ids = wire.container_ids_from(request.container_ids)
        decisions = self._control.admin.delete(
            ids,
            datanode_id=wire.parse_name(request.datanode_id, "datanode_id"),
            worlds=wire.fingerprints_from(request.worlds, ids),
            dry_run=request.dry_run,
        )
        return responses.decisions_message(decisions)

    def CommandNodes(self, request: pb.CommandNodesRequest) -> pb.NodeDecisions:
        """Order datanodes to measure the usage of their volumes, or to register again."""
        return responses.node_decisions_message(
            self._control.admin.command_nodes(*wire.node_order_from(request))
        )

    def GetQueues(self, _request: pb.GetQueuesRequest) -> pb.GetQueuesResponse:
        """Return the pending commands of each datanode, and the limits."""
        return responses.QUEUES.message(self._queries.queues())

    def SafeMode(self, request: pb.SafeModeRequest) -> pb.SafeModeResponse:
        """Enter or end safe mode if requested, and return the status of safe mode."""
        safe_mode = self._control.safe_mode
        if request.leave and request.enter:
            raise malformed("enter", "safe mode cannot be entered and left at once")
        gate = (
            safe_mode.leave()
            if request.leave
            else safe_mode.enter()
            if request.enter
            else safe_mode.status()
        )
        return pb.SafeModeResponse(
            on=not gate.is_open,
            reason=gate.reason,
            missing_datanode_ids=gate.missing,
            cold_start=gate.is_cold,
            expected_count=gate.expected_count,
            left_ms=int(gate.left_s * 1000),
        )

    def SetOperationalStates(self, request: pb.SetOperationalStatesRequest) -> pb.NodeDecisions:
        """Carry out a request for a departure, a maintenance or a return of datanodes."""
        wanted = wire.node_states_from(request)
        return responses.node_decisions_message(self._control.departure_requests.submit(wanted))

    def RemoveNodes(self, request: pb.RemoveNodesRequest) -> pb.NodeDecisions:
        """Remove dead datanodes and their replica records."""
        return responses.node_decisions_message(
            self._control.parting.remove_nodes(
                wire.node_ids_from(request.datanode_ids),
                is_forced=request.force,
                is_dry_run=request.dry_run,
            )
        )

    def MarkContainersLost(
        self, request: pb.MarkContainersLostRequest
    ) -> pb.MarkContainersLostResponse:
        """Mark missing containers as lost, or remove these marks."""
        ids = wire.container_ids_from(request.container_ids)
        worlds = wire.fingerprints_from(request.worlds, ids)
        forgetting = self._control.forgetting
        if request.undo:
            return responses.forgotten_message(forgetting.recall(ids, is_dry_run=request.dry_run))
        return responses.forgotten_message(
            forgetting.forget(ids, worlds=worlds, is_dry_run=request.dry_run)
        )

    def CheckStop(self, request: pb.CheckStopRequest) -> pb.CheckStopResponse:
        """Return the predicted effect of stopping datanodes or volumes."""
        return shutdown_impact_wire.IMPACT.message(
            self._control.impacts.analyze(shutdown_impact_wire.question_from(request))
        )

    def GetReport(self, _request: pb.GetReportRequest) -> pb.GetReportResponse:
        """Return the replication manager's report."""
        return responses.report_message(self._queries.report())

    def HoldContainers(self, request: pb.HoldContainersRequest) -> pb.ContainerDecisions:
        """Stop commands for containers or replicas, or allow them again."""
        holding = self._control.holding
        do = holding.release if request.release else holding.hold
        named = request.datanode_id
        return responses.decisions_message(
            do(
                wire.container_ids_from(request.container_ids),
                wire.parse_name(named, "datanode_id") if named else "",
            )
        )

    def ListHolds(self, _request: pb.ListHoldsRequest) -> pb.ListHoldsResponse:
        """Return the suppressed containers and excluded replicas."""
        holds = self._control.holding.holds()
        return pb.ListHoldsResponse(holds=responses.HOLD.messages(holds))

    def ChangeSettings(self, request: pb.ChangeSettingsRequest) -> pb.SettingsResponse:
        """Set or remove a pause, a rate or a window of some kinds of work."""
        settings = self._control.run_time.change(wire.setting_from(request))
        return responses.settings_message(settings)

    def ListSettings(self, _request: pb.ListSettingsRequest) -> pb.SettingsResponse:
        """Return the current run-time settings, and the options."""
        return responses.settings_message(self._control.run_time.settings(), self._control.options)

    def ListAnchors(self, request: pb.ListAnchorsRequest) -> pb.ListAnchorsResponse:
        """Return the recorded heads of the volumes' verification logs."""
        logs = self._control.anchoring.anchors(request.datanode_id, request.volume_id)
        return pb.ListAnchorsResponse(logs=responses.ANCHORS.messages(logs))

    def Balance(self, request: pb.BalanceRequest) -> pb.BalanceResponse:
        """Start or stop the balancer, and return its status."""
        threshold = parse_int(request.threshold_permille, "threshold_permille", low=0, high=1_000)
        count = parse_int(request.iteration_count, "iteration_count", low=0, high=1_000)
        balancer = self._control.balancer
        if request.stop or not threshold:
            return responses.BALANCE.message(balancer.stop() if request.stop else balancer.status())
        return responses.BALANCE.message(
            balancer.start(threshold / 10, count or ITERATIONS_DEFAULT, dry_run=request.dry_run)
        )

    def ListContainerKeys(
        self, request: pb.ListContainerKeysRequest
    ) -> pb.ListContainerKeysResponse:
        """Return a page of keys that have blocks in the given containers."""
        asked = request.container_ids
        ids = wire.container_ids_from(asked) if asked or not request.at_risk else []
        page = self._queries.keys_in(
            ids,
            is_at_risk=request.at_risk,
            start_after=wire.cut(request.start_after),
            count=_page_size(request.count),
        )
        return responses.KEY_PAGE.message(page)

    def GetRestoreRecovery(
        self, _request: pb.GetRestoreRecoveryRequest
    ) -> pb.GetRestoreRecoveryResponse:
        """Return the containers that `scm recover` must examine."""
        return recovering.to_recover_message(self._queries.to_recover())

    def RecoverFromRestore(
        self, request: pb.RecoverFromRestoreRequest
    ) -> pb.RecoverFromRestoreResponse:
        """Record what `scm recover` found on datanodes."""
        found = recovering.found_from(request)
        return recovering.recovered_message(
            self._control.recovery.recover(found, is_dry_run=request.dry_run)
        )

    def ListDecommissions(
        self, _request: pb.ListDecommissionsRequest
    ) -> pb.ListDecommissionsResponse:
        """Return the progress of the datanodes that are not in service."""
        departures = self._control.departures
        return responses.departures_message(
            departures.departures(), *map(departures.locked_together, (LEAVING, RESTING))
        )


def _page_size(count: int) -> int:
    return min(count, PAGE_MAX) or PAGE_MAX
