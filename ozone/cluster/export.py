"""`suture ozone export`: writes the state of an Ozone cluster as input for `suture-verify`.

The output is called a snapshot. Containers are requested in pages, together with their replicas.
Nodes are requested before the first page and after the last one, so that the node of every replica
is known. The cluster may change during the export. Each page has the state at the time of its
request.
"""

import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ozone.clients.scm import OzoneScmClient
from ozone.cluster import snapshot_rows
from ozone.cluster.listings import OzoneClusterView, Page, datanode_id
from ozone.cluster.scrubs import NOTHING_SCRUBBED, ScrubFindings
from ozone.cluster.snapshot_rows import ExportContext, Row, UnsupportedValue
from suture.errors import Code, RefusedError
from suture.wire.mapping.snapshot_file import SnapshotFiles, writing

PAGE_SIZE: Final = 4096  # containers per answer of the SCM
EXAMPLES_MAX: Final = 5
KIB: Final = 1024


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of an export."""

    client: OzoneScmClient
    target: Path
    scrubs: ScrubFindings = NOTHING_SCRUBBED
    page_containers: int = PAGE_SIZE
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000


@dataclass(slots=True)
class SkippedContainers:
    """Containers that are not in the snapshot, with the reasons.

    A container is omitted if the SCM reports a value for it that this release does not know.
    """

    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[int]] = field(default_factory=dict)

    def add(self, container_id: int, reason: str) -> None:
        """Record a container that is not in the snapshot, with the reason."""
        self.reasons[reason] += 1
        named = self.examples.setdefault(reason, [])
        if len(named) < EXAMPLES_MAX:
            named.append(container_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """Facts about a finished snapshot, and the cost of the export."""

    path: Path
    snapshot_id: str
    cluster_id: str
    scm: str
    rows: dict[str, int]
    gone_count: int
    """Number of containers that were deleted during the export."""
    scrubbed_count: int
    """Number of replicas with scrub results."""
    left_out: SkippedContainers
    is_safe_mode: bool
    requests: int
    connections: int
    answered_bytes: int
    elapsed_s: float

    @property
    def containers_ms(self) -> float:
        """Milliseconds that the export took per 1,000 containers."""
        return self.elapsed_s * 1e6 / max(self.rows["containers"], 1)

    def facts(self) -> dict[str, Any]:
        """Return the facts about the export, for the JSON output."""
        return {
            "snapshot": str(self.path),
            "snapshot_id": self.snapshot_id,
            "cluster_id": self.cluster_id,
            "scm": self.scm,
            "rows": self.rows,
            "gone_count": self.gone_count,
            "scrubbed_count": self.scrubbed_count,
            "left_out": [
                {"reason": reason, "count": count, "examples": self.left_out.examples[reason]}
                for reason, count in self.left_out.reasons.most_common()
            ],
            "is_safe_mode": self.is_safe_mode,
            "requests": self.requests,
            "connections": self.connections,
            "answered_bytes": self.answered_bytes,
            "elapsed_s": round(self.elapsed_s, 3),
            "ms_per_1000_containers": round(self.containers_ms, 3),
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
        }


def export(wish: ExportOptions, progress: Callable[[int, int], None]) -> ExportResult:
    """Write the snapshot, and return its facts.

    After each page, call `progress` with the number of containers in the page and in the cluster.
    On failure, remove the incomplete snapshot and raise RefusedError or UnavailableError.
    """
    begun_s = time.monotonic()
    cluster = OzoneClusterView(wish.client, wish.page_containers)
    as_of_ms = wish.now_ms()
    snapshot_id = f"{as_of_ms:013d}-ozone"
    cluster_id = cluster.cluster_id()
    is_safe_mode = cluster.is_in_safe_mode()
    cluster.list_nodes()
    cluster.list_pipelines()
    with writing(wish.target, snapshot_id) as files:
        work = _Export(cluster, files, ExportContext(as_of_ms, not is_safe_mode), wish.scrubs)
        for page in cluster.pages():
            work.add(page)
            progress(len(page.containers) + page.gone_count, page.total)
        work.add_nodes()
        files.finish(as_of_ms=as_of_ms, term=0, cluster_id=cluster_id, rules={})
    counts = wish.client.counts
    return ExportResult(
        path=wish.target,
        snapshot_id=snapshot_id,
        cluster_id=cluster_id,
        scm=str(wish.client.leader),
        rows=files.counts,
        gone_count=work.gone_count,
        scrubbed_count=work.scrubbed_count,
        left_out=work.left_out,
        is_safe_mode=is_safe_mode,
        requests=counts.requests,
        connections=counts.connections,
        answered_bytes=counts.answered_bytes,
        elapsed_s=time.monotonic() - begun_s,
    )


@dataclass(slots=True)
class _Export:
    cluster: OzoneClusterView
    files: SnapshotFiles
    instant: ExportContext
    scrubs: ScrubFindings
    left_out: SkippedContainers = field(default_factory=SkippedContainers)
    gone_count: int = 0
    scrubbed_count: int = 0
    holders: dict[str, Any] = field(default_factory=dict)

    def add(self, page: Page) -> None:
        """Write the rows of one page of containers."""
        self.gone_count += page.gone_count
        known = self.cluster.open_pipelines
        if any(snapshot_rows.lacks_pipeline(info, known) for info, _ in page.containers):
            self.cluster.list_pipelines()  # pipelines are created and closed all the time
        ids = [info.container_id for info, _ in page.containers] or [0]
        scrubbed = self.scrubs.between(ids[0], ids[-1])
        containers: list[Row] = []
        replicas: list[Row] = []
        for info, held in page.containers:
            try:
                row = snapshot_rows.container_row(info, self.cluster.open_pipelines, self.instant)
                rows = [
                    snapshot_rows.replica_row(
                        replica,
                        self.instant,
                        scrubbed.get((info.container_id, datanode_id(replica.datanode))),
                    )
                    for replica in held
                ]
            except UnsupportedValue as error:
                self.left_out.add(info.container_id, str(error))
                continue
            containers.append(row)
            replicas += rows
            self.scrubbed_count += sum(row.get("data_scan_at_ms") is not None for row in rows)
            for replica in held:
                self.holders.setdefault(datanode_id(replica.datanode), replica.datanode)
        self.files.add("containers", containers)
        self.files.add("replicas", replicas)

    def add_nodes(self) -> None:
        """Write the current nodes, and the nodes that are only mentioned in replicas."""
        self.cluster.list_nodes()
        usages = self.cluster.usages()
        try:
            rows = [
                snapshot_rows.node_row(name, node, usages.get(name), self.instant)
                for name, node in sorted(self.cluster.nodes.items())
            ]
        except UnsupportedValue as error:
            raise RefusedError(
                Code.MALFORMED_REQUEST, f"{self.cluster.client.leader}: {error}"
            ) from error
        removed = sorted(self.holders.keys() - self.cluster.nodes.keys())
        rows += [snapshot_rows.removed_node_row(self.holders[name]) for name in removed]
        self.files.add("nodes", rows)
