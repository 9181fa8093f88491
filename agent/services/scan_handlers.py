"""Handlers of the RPCs that scan or sample replicas, and that return findings."""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Final

from grpc import ServicerContext as Context

from agent.services import report_messages
from agent.services.limits import DatanodeServerLimits
from agent.services.service_protocols import (
    Sample,
    SampleResult,
    SampleSpec,
    Scan,
    ScanMode,
    ScanStep,
)
from agent.store.replica_store import ReplicaStore
from merkle.replica import ID_MAX, ContainerId
from scanner.sampling import DRAWN_MAX
from suture.wire.mapping import codec
from suture.wire.mapping.message_map import MessageMap, each
from suture.wire.v1 import datanode_pb2 as pb

SAMPLE_RESULT: Final = MessageMap(pb.SampleResult, SampleResult, bad=each(report_messages.FINDING))
SCAN_PROGRESS: Final = MessageMap(
    pb.ScanProgress, ScanStep, omits=["result"], queued="is_queued", waiting="is_waiting"
)


@dataclass(eq=False)
class ScanHandlers:
    """Handlers of ScanContainer, SampleChunks and ListFindings."""

    store: ReplicaStore
    scan: Scan
    sample: Sample
    _: KW_ONLY
    limits: DatanodeServerLimits

    def ScanContainer(
        self, request: pb.ScanContainerRequest, context: Context
    ) -> Iterator[pb.ScanProgress]:
        """Scan the complete replica now, and send the progress and the result.

        If the request sets `queue`, only add the scan to the queue. If the caller disconnects, a
        scan that is not queued ends early.
        """
        container_id = codec.parse_container_id(request.container_id)
        if request.queue and request.full_speed:
            raise codec.malformed("full_speed", "a scan that is queued has the pace of the queue")
        mode = ScanMode.FULL_SPEED if request.full_speed else ScanMode.WAIT
        if request.queue:
            mode = ScanMode.QUEUE
        self.store.replica(container_id)  # raises an error if the container is unknown
        for step in self.scan(container_id, lambda: not context.is_active(), mode):
            progress = SCAN_PROGRESS.message(step)
            if step.commit is not None:
                progress.result.CopyFrom(self._scan_result(container_id, step))
            yield progress

    def _scan_result(self, container_id: ContainerId, step: ScanStep) -> pb.ScanResult:
        count_max = self.limits.findings_page_max
        findings = self.store.findings(container_id, count=count_max)
        facts = self.store.replica(container_id)
        return pb.ScanResult(
            replica=report_messages.replica_report(facts),
            findings=report_messages.FINDING.messages(findings),
            finding_count=max(facts.finding_count, len(findings)),
            bytes_read=step.bytes_read,
        )

    def SampleChunks(
        self, request: pb.SampleChunksRequest, context: Context
    ) -> Iterator[pb.SampleProgress]:
        """Count the chunks of this datanode, or read a random sample of them. Send the progress and
        the result.

        If the caller disconnects, the sample ends early.
        """
        chunk_count = codec.parse_int(request.chunk_count, "chunk_count", low=0, high=ID_MAX)
        draw = SampleSpec(
            chunk_count,
            codec.parse_int(
                request.drawn_count, "drawn_count", low=0, high=min(chunk_count, DRAWN_MAX)
            ),
            request.seed,
        )
        for step in self.sample(draw, lambda: not context.is_active()):
            progress = pb.SampleProgress(read_count=step.read_count)
            if step.result is not None:
                progress.result.CopyFrom(SAMPLE_RESULT.message(step.result))
            yield progress

    def ListFindings(self, request: pb.ListFindingsRequest) -> pb.ListFindingsResponse:
        """Return a page of findings, in ascending order of container ids.

        The findings of one container are always on one page. If they exceed the page, the excess
        findings are omitted.
        """
        count = self.limits.findings_page_max
        if request.container_id:
            container_id = codec.parse_container_id(request.container_id)
            found = self.store.findings(container_id, count=count)
            return pb.ListFindingsResponse(findings=report_messages.FINDING.messages(found))
        start = codec.parse_int(
            request.start_container_id, "start_container_id", low=0, high=ID_MAX
        )
        found = self.store.findings(start=start, count=count + 1)
        next_id = 0
        if len(found) > count:
            next_id = found[count].container_id
            whole = [finding for finding in found if finding.container_id != next_id]
            if not whole:  # one container exceeds the page: return a part, continue with the next
                next_id += 1
            found = whole or found[:count]
        return pb.ListFindingsResponse(
            findings=report_messages.FINDING.messages(found), next_container_id=next_id
        )
