"""The trail of commands: each that leaves and each that ends is noted, once it is durable."""

from dataclasses import replace
from pathlib import Path

import pytest

from scm.state.entities import OutcomeState
from scm.state.options import ScmOptions
from suture.errors import Code, UnavailableError
from tests.support.control.scm_world import ScmWorld, outcome

NODES = ("dn1", "dn2", "dn3", "dn4")


class Lines:
    """An audit log in memory."""

    path = None

    def __init__(self) -> None:
        self.lines: list[dict[str, object]] = []

    def record(self, action: str, result: str, **facts: object) -> None:
        """Keep it."""
        self.lines.append({"action": action, "result": result, **facts})


@pytest.fixture
def audit() -> Lines:
    """The audit log of the world."""
    return Lines()


def begun(path: Path, audit: Lines) -> ScmWorld:
    """Begin a world of four nodes that writes to `audit`."""
    world = ScmWorld(path, ScmOptions(safemode_wait_ms=0), audit=audit)
    world.join(*NODES)
    return world


def test_commands_and_their_results_are_in_the_audit_log(tmp_path: Path, audit: Lines) -> None:
    """The log has the node, the container, the target, the reason and the result of a close and
    of a copy.
    """
    with begun(tmp_path, audit).running() as world:
        made = world.made_closed()
        [target] = set(NODES) - {r.datanode_id for r in world.state.replicas.of(made.container_id)}
        world.control.safe_mode.leave()
        [decision] = world.control.admin.replicate(
            [made.container_id], target_id=target, worlds=(), dry_run=False
        )
        [command_id] = decision.command_ids
        for node in NODES:
            for command, _named in world.call(node).commands:
                failed = outcome(command, OutcomeState.FAILED, code="BUSY")
                world.call(command.datanode_id, outcomes=(failed,))

    of_close = [line for line in audit.lines if line["action"] == "command close"]
    assert sorted(["SENT", "OK"] * 3) == sorted(str(line["result"]) for line in of_close)
    assert {made.container_id} == {line["container_id"] for line in of_close}
    assert all(line["why"] for line in of_close if line["result"] == "SENT")
    sent, ended = [line for line in audit.lines if line.get("command_id") == command_id]
    assert ("command replicate", "SENT") == (sent["action"], sent["result"])
    assert ("scm", "an operator asked for it", target) == tuple(
        sent[name] for name in ("who", "why", "target_id")
    )
    assert sent["datanode_id"] == ended["datanode_id"]
    assert ("BUSY", "FAILED") == (ended["result"], ended["state"])


def test_abandoned_command_is_audited(tmp_path: Path, audit: Lines) -> None:
    """A command without an answer ends in the audit log, too, with the reason."""
    with begun(tmp_path, audit).running() as world:
        made = world.made_closed(roots=(7, 7, 8))
        world.control.admin.reconcile([made.container_id])
        for node in NODES:
            world.call(node)
        world.clock.advance_s(world.options.command_deadline_ms / 1000 + 1)
        world.control.tick()

    results = [line["result"] for line in audit.lines if line["action"] == "command reconcile"]
    assert "SENT" in results
    assert "DEADLINE_PASSED" in results or "UNAVAILABLE" in results


def test_a_change_that_is_undone_leaves_no_note(tmp_path: Path, audit: Lines) -> None:
    """A change that did not become durable was not sent."""
    with begun(tmp_path, audit).running() as world:
        world.write("a", "k", 1)
        world.control.clients.finish("a", close=True)
        [(command, _named)] = world.call("dn1").commands or world.call("dn4").commands
        before = list(audit.lines)
        world.state._environment._environment.set_mapsize(512 * 1024)
        too_large = replace(outcome(command), detail=b"x" * 1024**2)

        with pytest.raises(UnavailableError) as caught:
            world.call(command.datanode_id, outcomes=(too_large,))

    assert Code.DISK_OUT_OF_SPACE == caught.value.code
    assert ["SENT"] == [line["result"] for line in before]
    assert before == audit.lines
