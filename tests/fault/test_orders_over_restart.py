"""Orders that an operator gives right after the control plane has started."""

import os
from pathlib import Path

import pytest

from agent.cli.main import run
from suture.runtime.exit_codes import ExitCode
from tests.support.command_line import CommandLine
from tests.support.nursery import forked
from tools.demo.cluster import Cluster

pytestmark = [pytest.mark.fault, pytest.mark.slow]

SECTIONS = "[scan]\nenabled = false\nwatch = false\n"


def test_orders_wait_until_datanodes_have_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command prints what it waits for. A container that does not exist is refused."""
    file = tmp_path / "file"
    file.write_bytes(os.urandom(50_000))
    with Cluster(
        tmp_path / "c", agents=4, volumes=1, agent_sections=SECTIONS, launch=forked
    ) as cluster:
        suture = CommandLine(cluster.scm.address, capsys)
        suture("put", str(file), "--close", "--sessions", "1")
        suture.wait_until_reported(1)
        suture.wait_until_closed([1])
        ended: dict[str, tuple[int, str]] = {}
        for order in (
            ["reconcile", "1", "--wait-for", "0"],
            ["scm", "replicate", "1", "99", "--yes"],
        ):
            cluster.scm.stop()
            cluster.scm.arguments = cluster.scm_arguments(cluster.scm.address)
            cluster.scm.start()
            capsys.readouterr()
            code = run([*order, "--scm", cluster.scm.address])
            ended[" ".join(order[:2])] = code, capsys.readouterr().err

    assert [ExitCode.OK, ExitCode.FAILED] == [code for code, _ in ended.values()]
    for _, said in ended.values():
        assert "waiting for the control plane: 1 of" in said
        assert "container 1: SAFE_MODE" in said
