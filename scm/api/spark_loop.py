"""Runs Spark verifications: exports a snapshot, runs suture-verify, and applies the resulting plan.

A verification of all containers runs at every interval. If a datanode has changed, a verification
of only its containers runs. The control plane checks each row of the plan against its current state
before it orders anything.

Urgent work, such as copies of a dead datanode's replicas, does not wait for a verification, because
the replication manager orders it. Spark finds facts that a check of a single container cannot find.
Examples are the correct root, a datanode or version that many wrong replicas have in common, and
containers whose repairs make no progress.
"""

import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from scm.api import wire
from scm.api.calls.control import ControlPlane
from suture.errors import SutureError
from suture.runtime.backoff import backoff_s
from suture.runtime.exit_codes import ExitCode
from suture.runtime.loop import ProgressMarker, RetryAfter, Step
from suture.wire.mapping.plan_file import SCAN, FinishedRun, plan_pages

RUNS_KEPT: Final = 10  # results kept of full runs, and of runs for a few nodes
POLL_S: Final = 1.0
TOLD_MAX: Final = 500  # characters of the program's output
LINES_TOLD: Final = 5
PAUSE_S_MIN: Final = 30.0  # between two runs, so that a flapping node does not keep Spark busy
DONE_CODES: Final = frozenset({ExitCode.OK, ExitCode.TO_DO, ExitCode.DATA_AT_RISK})

_log = structlog.get_logger("suture.scm")


@dataclass(eq=False)
class SparkLoop:
    """Runs the Spark job when it is due, and applies its plan.

    The job is the process `command SNAPSHOT --out DIR --json`. A `WorkerLoop` calls `step`
    repeatedly, and continues after any error.
    """

    name = "verify"

    control: ControlPlane
    command: Sequence[str]
    out: Path
    _: KW_ONLY
    interval_s: float
    deadline_s: float
    pulse: ProgressMarker

    def __post_init__(self) -> None:
        self._ran_at_s = time.monotonic()
        self._failed_count = 0
        self._is_stopping = False
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    @property
    def log(self) -> Path:
        """Return the path of the file with the stderr of the last Spark job."""
        return self.out / "verify.log"

    def step(self) -> Step:
        """Run a verification (snapshot, Spark job, plan) if one is due."""
        waited_s = time.monotonic() - self._ran_at_s
        pause_s = backoff_s(self._failed_count + 1, first_s=PAUSE_S_MIN, longest_s=self.interval_s)
        if waited_s >= pause_s:
            changed = self.control.pop_changed_nodes()
            if changed or waited_s >= self.interval_s:
                self._ran_at_s = time.monotonic()
                self._failed_count += 1
                try:
                    if self.verify_once(changed if waited_s < self.interval_s else []):
                        self._failed_count = 0
                finally:
                    if self._failed_count:
                        self.control.nodes_changed(changed)
                self._ran_at_s = time.monotonic()
        return RetryAfter(POLL_S)

    def stop(self) -> None:
        """Terminate the running Spark job, and prevent new jobs."""
        with self._lock:
            self._is_stopping = True
            if self._process is not None:
                self._process.terminate()

    def verify_once(self, changed: Sequence[str] = ()) -> bool:
        """Export a snapshot, run the Spark job on it, and apply the job's plan.

        If `changed` is not empty, the job verifies only the containers on these datanodes. Return
        False if a step failed. The error is logged, and the next call of `step` tries again.
        """
        decisions: Counter[str] = Counter()
        message = "ended by a defect; the log has it"
        try:
            run = self._verify(changed)
            decisions.update(self._apply(run))
            message = ""
            _log.info("plan_applied", run=run.name, decisions=dict(decisions))
        except (SutureError, OSError, ValueError, KeyError) as error:
            message = f"{type(error).__name__}: {error}"
            _log.error("spark_verification_failed", error=message)
        finally:
            self.control.note_verified(decisions, message)
        return not message

    def _verify(self, changed: Sequence[str]) -> Path:
        exported = self.control.queries.export_snapshot()
        nodes = [f"--changed-node={node}" for node in changed]
        kept = ["--keep-runs", str(RUNS_KEPT)]
        code, out = self._run([exported.place, "--out", str(self.out), "--json", *kept, *nodes])
        if code not in DONE_CODES:
            told = out.strip()[-TOLD_MAX:] or self._last_words()
            raise ValueError(f"{self.command[0]} ended with {code}: {told}; see {self.log}")
        answer = json.loads(out)
        _check_answer(answer, exported.snapshot_id, sorted(changed))
        return Path(answer["path"])

    def _run(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Run the Spark job. Return its exit code and its stdout.

        Raise ValueError if the job does not end before its deadline, or if this loop is stopped.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as errors, self._lock:
            if self._is_stopping:
                raise ValueError("stopped")
            process = self._process = subprocess.Popen(  # noqa: S603 -- the operator's own command
                [*self.command, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True
            )
        end_s = time.monotonic() + self.deadline_s
        try:
            while True:
                self.pulse.mark()
                try:
                    out, _nothing = process.communicate(timeout=POLL_S)
                except subprocess.TimeoutExpired:
                    if time.monotonic() < end_s:
                        continue
                    process.kill()
                    process.communicate()
                    late = f"{self.command[0]} did not end in {self.deadline_s:.0f} s"
                    raise ValueError(f"{late} and was killed; see {self.log}") from None
                return process.returncode, out
        finally:
            with self._lock:
                self._process = None

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-LINES_TOLD:])[-TOLD_MAX:]

    def _apply(self, run: Path) -> Counter[str]:
        codes: Counter[str] = Counter()
        # Leave out scans: datanodes schedule them, and there may be millions of such rows.
        for page in plan_pages(FinishedRun.opened(str(run)), but=SCAN):
            decisions = self.control.plans.apply_plan(wire.plan_rows_from(page), dry_run=False)
            codes.update(str(decision.code) for decision in decisions)
        return codes


def _check_answer(answer: dict[str, Any], snapshot_id: str, changed: list[str]) -> None:
    """Raise ValueError if the job's answer is about another snapshot or about other datanodes.

    This can happen, for instance, if the configured command contains a fixed run id.
    """
    if answer["snapshot_id"] != snapshot_id:
        raise ValueError(
            f"{answer['path']} is the run of snapshot {answer['snapshot_id']}, not of {snapshot_id}"
        )
    if answer["changed_nodes"] != changed:
        there, here = (
            ", ".join(nodes) or "all nodes" for nodes in (answer["changed_nodes"], changed)
        )
        raise ValueError(f"{answer['path']} is the run of containers on {there}, not on {here}")
