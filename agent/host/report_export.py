"""Worker that writes the reports of all replicas of this datanode to a Parquet file, for Spark.

Control planes receive the same reports in heartbeats. With these files, `suture-verify --reports`
needs no control plane. A separate process (`suture.wire.mapping.report_file`) writes the file, so
that only this worker is affected if the target hangs or is full.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from importlib.util import find_spec
from threading import Event
from typing import IO, Any, Final

import structlog
from google.protobuf.proto import serialize_length_prefixed

from agent.config.options import AgentConfig, ReportConfig
from agent.host.datanode_identity import DatanodeIdentity
from agent.host.heartbeat import REPLICAS_PER_HEARTBEAT_MAX
from agent.observe.datanode_status import DatanodeStatus
from agent.store.volumes.op_state_file import IN_SERVICE
from suture.errors import Code, UnavailableError, missing_extra
from suture.runtime.clock import Clock
from suture.runtime.loop import NoMoreWork, ProgressMarker, RetryAfter, Step
from suture.wire.v1 import container_pb2, scm_pb2

WRITE_S_MAX: Final = 600.0  # a report of 100,000 replicas takes only seconds
POLL_S: Final = 0.5
REBUILD_CHECK_S: Final = 10.0  # until a report is tried again while an index is being rebuilt
NEEDED: Final = "pyarrow"

log = structlog.get_logger()


def check_export(config: ReportConfig) -> None:
    """Raise RefusedError if the config enables report files, but pyarrow is not installed."""
    if config.export and find_spec(NEEDED) is None:
        missing = ModuleNotFoundError(name=NEEDED)
        raise missing_extra(missing, f"report.export = {config.export!r}", extra="reports")


@dataclass(eq=False)
class ReportExport:
    """Writes a report file after the start, and then one file per interval.

    `address` returns the address at which peers reach this agent. `on_exported` is called after
    each file with the time of the report in milliseconds.
    """

    name = "report-export"

    config: AgentConfig
    who: DatanodeIdentity
    observer: DatanodeStatus
    clock: Clock
    _: KW_ONLY
    address: Callable[[], str]
    stop: Event
    pulse: ProgressMarker
    on_exported: Callable[[int], None]

    def __post_init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def step(self) -> Step:
        """Write one report file. Raise UnavailableError if the file cannot be written."""
        config, at_ms = self.config.report, self.clock.now_ms()
        if self.observer.is_rebuilding:
            return RetryAfter(REBUILD_CHECK_S)  # the report would lack replicas
        if self._process is not None and self._process.poll() is None:
            raise self._export_error("the process that wrote the report before cannot be killed")
        header = {
            "directory": config.export,
            "keep_count": config.keep_count,
            "datanode_id": self.who.datanode_id,
            "start_id": self.who.boot_id,
            "reported_at_ms": at_ms,
            "datanode": self._described(),
        }
        with os.fdopen(os.memfd_create("suture-report"), "w+b") as pages:
            pages.write(json.dumps(header).encode() + b"\n")
            if not self._write_pages(pages):
                return NoMoreWork()
            pages.seek(0)
            written = self._written(pages)
        if written is None:
            return NoMoreWork()
        self.on_exported(at_ms)
        log.info("report_exported", directory=config.export, **written)
        return RetryAfter(config.interval_s)

    def _write_pages(self, pages: IO[bytes]) -> bool:
        """Write the reports of all replicas to `pages`. Return False if the agent stops before the
        end."""
        ids = self.observer.replica_ids()
        for first in range(0, len(ids), REPLICAS_PER_HEARTBEAT_MAX):
            self.pulse.mark()
            if self.stop.is_set():
                return False
            page = ids[first : first + REPLICAS_PER_HEARTBEAT_MAX]
            found = (self.observer.report(container_id) for container_id in page)
            held = [one for one in found if one.state != container_pb2.DELETED]
            report = scm_pb2.ContainerReport(replicas=held)
            serialize_length_prefixed(report, pages)  # type: ignore[arg-type]  # any binary file
        return True

    def _written(self, pages: IO[bytes]) -> dict[str, int] | None:
        """Run the process that writes the file, and return the counts that it prints.

        Return None if the agent stops before the process ends.
        """
        with os.fdopen(os.memfd_create("suture-report-answer"), "w+b") as answers:
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "suture.wire.mapping.report_file"],
                stdin=pages,
                stdout=answers,
                start_new_session=True,  # Ctrl-C at the terminal stops only the agent
            )
            try:
                has_ended = self._await(process)
            finally:
                process.kill()
                with suppress(subprocess.TimeoutExpired):  # the process may wait for a hung disk
                    process.wait(POLL_S)
            if not has_ended:
                return None
            answers.seek(0)
            text = answers.read().decode() or f'{{"error": "exit code {process.returncode}"}}'
        answer: dict[str, Any] = json.loads(text)
        if process.returncode:
            raise self._export_error(answer["error"])
        return answer

    def _await(self, process: "subprocess.Popen[bytes]") -> bool:
        """Wait until the process ends. Return False if the agent stops before that.

        Raise UnavailableError if the process takes longer than WRITE_S_MAX seconds.
        """
        deadline_s = self.clock.monotonic_s() + WRITE_S_MAX
        while self.clock.monotonic_s() < deadline_s:
            self.pulse.mark()
            if self.stop.is_set():
                return False
            try:
                process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                continue
            return True
        raise self._export_error(f"no end after {WRITE_S_MAX:.0f} s")

    def _export_error(self, reason: str) -> UnavailableError:
        return UnavailableError(
            Code.UNAVAILABLE, f"cannot write a report to {self.config.report.export}: {reason}"
        )

    def _described(self) -> dict[str, Any]:
        """Return the facts about this datanode for the header of the report file."""
        volumes, state = self.observer.store_volumes(), self.observer.node_state()
        return {
            "cluster_id": self.who.cluster_id,
            "interval_s": self.config.report.interval_s,
            "address": self.address(),
            "rack": self.config.node.rack,
            "version": self.who.version,
            "op_state": state.op_state or IN_SERVICE,
            "op_expiry_ms": state.op_expiry_ms or None,
            "capacity_bytes": sum(one.capacity_bytes for one in volumes if not one.failed),
            "available_bytes": sum(one.available_bytes for one in volumes if not one.failed),
        }
