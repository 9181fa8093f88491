"""`suture versions` over a real connection, with an SCM and a datanode of chosen versions."""

import json
import socket
from importlib.metadata import version
from typing import Any, Final

import pytest

from agent.cli.main import run
from suture.runtime.exit_codes import ExitCode
from suture.wire.v1 import datanode_pb2, scm_pb2
from tests.support.control.scripted_calls import ScriptedCalls

OWN: Final = version("suture")
OLDER: Final = "0.0.9"
STARTED_AT_MS: Final = 1_700_000_000_000


def prepare(calls: ScriptedCalls, *, scm: str, agent: str) -> None:
    """Be an SCM with one datanode, which registered as OLDER and now answers as `agent`."""
    node = scm_pb2.NodeInfo(datanode_id="dn-1", address=calls.address, version=OLDER)
    calls.answers["ListNodes"] = [
        scm_pb2.ListNodesResponse(nodes=[node], version=scm, started_at_ms=STARTED_AT_MS)
    ]
    calls.answers["Status"] = [
        datanode_pb2.StatusResponse(
            datanode_id="dn-1", version=agent, started_at_ms=STARTED_AT_MS + 1
        )
    ]


def document(calls: ScriptedCalls, capsys: pytest.CaptureFixture[str], code: int) -> Any:
    """Run the command; return its document."""
    assert code == run(["versions", "--json", "--scm", calls.address])
    return json.loads(capsys.readouterr().out)


def test_programs_of_one_version_are_listed_without_a_mark(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The version that an agent answers counts, not the older one of its registration."""
    with ScriptedCalls() as calls:
        prepare(calls, scm=OWN, agent=OWN)
        found = document(calls, capsys, ExitCode.OK)

    assert 1 == found["schema"]
    assert not found["is_mixed"]
    shown = [
        (one["program"], one["datanode_id"], one["address"], one["version"], one["started_at_ms"])
        for one in found["programs"]
    ]
    assert shown == [
        ("suture-scm", "", calls.address, OWN, STARTED_AT_MS),
        ("suture-agent", "dn-1", calls.address, OWN, STARTED_AT_MS + 1),
        ("suture", "", "", OWN, 0),
    ]
    assert not any(one["differs"] or one["error"] for one in found["programs"])


@pytest.mark.parametrize(
    ("scm", "agent", "expected"),
    [
        (OWN, OLDER, [False, True, False]),
        (OLDER, OWN, [False, True, True]),
        (OLDER, OLDER, [False, False, True]),
    ],
)
def test_programs_of_another_version_than_the_scm_are_marked(
    scm: str, agent: str, expected: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command itself counts, and the exit code says that versions are mixed."""
    with ScriptedCalls() as calls:
        prepare(calls, scm=scm, agent=agent)
        found = document(calls, capsys, ExitCode.TO_DO)
        assert ExitCode.TO_DO == run(["versions", "--scm", calls.address])

    assert found["is_mixed"]
    assert expected == [one["differs"] for one in found["programs"]]
    assert sum(expected) == capsys.readouterr().out.count("differs from the SCM")


def test_datanode_that_does_not_answer_has_the_version_of_its_registration(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The reason is shown, and its start is unknown."""
    with ScriptedCalls() as calls, socket.socket() as closed:
        prepare(calls, scm=OLDER, agent=OWN)
        closed.bind(("127.0.0.1", 0))  # bound without listening: connections are refused
        calls.answers["ListNodes"][0].nodes[0].address = f"127.0.0.1:{closed.getsockname()[1]}"
        found = document(calls, capsys, ExitCode.TO_DO)

    agent = found["programs"][1]
    assert (OLDER, 0, False) == (agent["version"], agent["started_at_ms"], agent["differs"])
    assert "" != agent["error"]
