"""`suture scm recover` against a control plane that was restored: it comes to its end."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.cli.change.recover import Result, _looked_into
from agent.cli.terminal.output import Exit
from agent.client.client import Client
from scm.edge.server import build_server
from scm.edge.service import ScmService
from scm.state.clock import Clock
from tests.support.command_line import CommandLine
from tests.support.control.restored import report, restored_world
from tests.support.control.scm_world import ScmWorld

FAR_OFF = 10**12


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """A restored control plane."""
    with restored_world(tmp_path / "data") as made:
        yield made


@pytest.fixture
def suture(world: ScmWorld, capsys: pytest.CaptureFixture[str]) -> Iterator[CommandLine]:
    """The command, and the control plane behind a server; its datanodes only report."""
    with ThreadPoolExecutor(4) as executor:
        service = ScmService(world.control, clock=Clock(), options=world.options)
        built = build_server(service, "127.0.0.1:0", executor)
        built.server.start()
        yield CommandLine(built.address, capsys)
        built.server.stop(0).wait()


def test_a_container_that_is_not_taken_over_is_named(world: ScmWorld, suture: CommandLine) -> None:
    """
    Safe mode ends, and a person hears of what the control plane leaves where it is.
    """
    report(world, 1, 2, 9, FAR_OFF)

    found = suture.json("scm", "recover", "--force", code=Exit.TO_DO)

    assert ([9], [FAR_OFF]) == (found["adopted_containers"], found["left_containers"])
    assert found["finished"]
    assert world.state.restored is None
    shown = suture("scm", "recover", "--dry-run", code=Exit.TO_DO)
    assert "not taken over: ids too high" in shown
    assert f"\n  {FAR_OFF}\n" in shown


def test_what_is_lost_while_it_is_looked_into_is_passed_by(
    world: ScmWorld, suture: CommandLine
) -> None:
    """
    A disk fails between the question what there is and the question where: that is no reason to
    stay in safe mode.
    """
    report(world, 1, 2)

    with Client(suture.scm) as client:
        seen = list(_looked_into(client, [2, 9], Result(), quiet=True))

    assert [2] == [one.container_id for one in seen]
