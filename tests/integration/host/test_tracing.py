"""OpenTelemetry: spans over processes where it is loaded, and nothing of it where it is not."""

import json
import subprocess
import sys

UNTRACED = """
import sys, agent.main, scm.main
from suture.runtime.tracing import carried, span
with span("x"):
    assert carried() is None
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
TRACED = """
import json, sys, tempfile, threading
from pathlib import Path
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
kept = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
from suture.wire.clients.peer import Peer
from suture.runtime.clock import SystemClock
from agent.commands.pool import TaskPool
from agent.commands.command_queue import Task, TaskLimits
from tests.support.storage.datanodes import Datanode
from tests.support.storage.stored_replica import CONTAINER
from tests.support.idle import wait_idle
with tempfile.TemporaryDirectory() as root:
    node = Datanode("dn1", Path(root))
    node.replica.create()
    node.serve()
    def asks(context):
        with Peer(node.address) as peer:
            peer.replica(CONTAINER)
            peer.tree(CONTAINER)
    pool = TaskPool(TaskLimits(running_max=2), clock=SystemClock(), name="tasks")
    pool.submit(Task("reconcile", 7, about=(("command_id", 5), ("container_id", 7))), asks)
    assert wait_idle(pool, 30)
    pool.stop(10)
    node.close()
print(json.dumps([
    [s.name, s.context.trace_id, s.context.span_id, s.parent and s.parent.span_id,
     dict(s.attributes), s.kind.name]
    for s in kept.get_finished_spans()
]))
"""


def printed(program: str) -> str:
    """Run a program; return the last line that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout.splitlines()[-1]


def test_without_it_nothing_of_it_is_loaded() -> None:
    """A process that does not start under the tracer does not import the installed package."""
    assert "[]" == printed(UNTRACED)


def test_a_task_and_the_calls_it_makes_are_one_trace() -> None:
    """
    The span of the command is the parent of those at the datanodes that it asks, also of streams.
    """
    spans = json.loads(printed(TRACED))

    [task] = [span for span in spans if span[0] == "reconcile"]
    calls = {span[0]: span for span in spans if span[0] != "reconcile"}
    assert {"suture.command_id": 5, "suture.container_id": 7} == task[4]
    assert {"/suture.v1.Datanode/GetContainer", "/suture.v1.Datanode/GetContainerHashes"} <= set(
        calls
    )
    for span in calls.values():
        assert (task[1], task[2], "SERVER") == (span[1], span[3], span[5])
