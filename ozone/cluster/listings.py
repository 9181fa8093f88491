"""Reads an Ozone cluster for a snapshot page by page, so that memory use is bounded."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from ozone.clients.frames import Failure
from ozone.clients.messages import ScmRequestType
from ozone.clients.scm import OzoneScmClient, request
from suture.errors import Code, RefusedError

WHOLE_CLUSTER: Final = 1  # QueryScope
PIPELINE_OPEN: Final = 2  # PipelineState
NOT_FOUND: Final = "ContainerNotFoundException"
BITS: Final = 64


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the list of containers, with the replicas of each, by ascending container id."""

    containers: tuple[tuple[Any, tuple[Any, ...]], ...]
    gone_count: int
    """Number of containers that were deleted between the two requests of a page."""
    total: int
    """Number of containers in the cluster; 0 if the SCM does not report it."""


@dataclass(slots=True)
class OzoneClusterView:
    """The state of an Ozone cluster, as its SCM reports it.

    All methods raise RefusedError if the SCM rejects a request, and UnavailableError if no SCM
    answers.
    """

    client: OzoneScmClient
    page_containers: int
    nodes: dict[str, Any] = field(default_factory=dict)
    """`Node` messages by datanode id."""
    open_pipelines: frozenset[str] = frozenset()

    def cluster_id(self) -> str:
        """Return the id of the cluster."""
        return str(self.client.call(ScmRequestType.GET_SCM).get_scm.cluster_id)

    def is_in_safe_mode(self) -> bool:
        """Return whether the SCM is in safe mode.

        In safe mode, it waits for the reports of the datanodes.
        """
        return bool(self.client.call(ScmRequestType.GET_SAFE_MODE).get_safe_mode.is_on)

    def list_nodes(self) -> None:
        """Read the current nodes. Keep nodes of an earlier call that the SCM no longer lists."""
        answer = self.client.call(ScmRequestType.QUERY_NODES, scope=WHOLE_CLUSTER)
        for node in answer.query_nodes.nodes:
            self.nodes[datanode_id(node.datanode)] = node

    def list_pipelines(self) -> None:
        """Read the ids of open pipelines."""
        answer = self.client.call(ScmRequestType.LIST_PIPELINES)
        self.open_pipelines = frozenset(
            pipeline_id(pipeline.id)
            for pipeline in answer.list_pipelines.pipelines
            if pipeline.state == PIPELINE_OPEN
        )

    def usages(self) -> dict[str, Any]:
        """Return the disk usage of each node that reports it, by datanode id."""
        found = {}
        names = list(self.nodes)
        asked = self.client.call_each(
            range(len(names)), lambda place: request(ScmRequestType.GET_USAGE, uuid=names[place])
        )
        for place, answer in asked:
            if not isinstance(answer, Failure) and answer.get_usage.usages:
                found[names[place]] = answer.get_usage.usages[0]
        return found

    def pages(self) -> Iterator[Page]:
        """Yield all containers with their replicas in pages, by ascending container id."""
        start, total = 1, 0
        while True:
            listed = self.client.call(
                ScmRequestType.LIST_CONTAINERS, count=self.page_containers, start=start
            ).list_containers
            containers = {one.container_id: one for one in listed.containers}
            if not containers:
                return
            if min(containers) < start:
                raise RefusedError(
                    Code.MALFORMED_REQUEST,
                    f"{self.client.leader} returned container {min(containers)} for a request "
                    f"of containers from {start} on",
                )
            total = total or listed.total  # later answers count from their start on
            replicas = self._replicas(containers)
            yield Page(
                tuple((containers[key], replicas[key]) for key in sorted(replicas)),
                len(containers) - len(replicas),
                total,
            )
            start = max(containers) + 1

    def _replicas(self, containers: Mapping[int, Any]) -> dict[int, tuple[Any, ...]]:
        found = {}
        asked = self.client.call_each(
            containers, lambda key: request(ScmRequestType.GET_REPLICAS, container_id=key)
        )
        for container_id, answer in asked:
            if isinstance(answer, Failure):
                if answer.name != NOT_FOUND:
                    raise RefusedError(
                        Code.CONTAINER_INTERNAL_ERROR,
                        f"{self.client.leader} did not return the replicas of container "
                        f"{container_id}: {answer.name}: {answer.text}",
                    )
                continue
            found[container_id] = tuple(answer.get_replicas.replicas)
        return found


def datanode_id(datanode: Any) -> str:
    """Return the id of a datanode in any of the SCM's formats, or "" if it has none."""
    if datanode.uuid:
        return str(datanode.uuid)
    return _uuid(datanode.id.uuid if datanode.HasField("id") else datanode.uuid128)


def pipeline_id(pipeline: Any) -> str:
    """Return the id of a pipeline in any of the SCM's formats, or "" if it has none."""
    return str(pipeline.id) if pipeline.id else _uuid(pipeline.uuid128)


def _uuid(halves: Any) -> str:
    if not halves.HasField("most"):
        return ""
    mask = (1 << BITS) - 1
    return str(UUID(int=(halves.most & mask) << BITS | halves.least & mask))
