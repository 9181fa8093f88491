"""What an operator asks: is it whole, what was found, how are the disks, what is the evidence."""

import json
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.cli.inspect.datanode_tables import replace_reasons, wear_rank
from agent.cli.main import run
from merkle.replica import ContainerId
from suture.runtime.exit_codes import ExitCode
from suture.runtime.http_listener import WebListener
from suture.wire.clients.peer import Peer
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.command_line import CommandLine
from tests.support.nursery import forked
from tests.support.storage.blocks_on_disk import newest_block
from tools.demo.cluster import Cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of three agents that scan only when asked."""
    root = tmp_path_factory.mktemp("answers")
    sections = "[scan]\nenabled = false\nwatch = false\n"
    with Cluster(root, agents=3, volumes=1, agent_sections=sections, launch=forked) as running:
        yield running


@pytest.fixture
def damaged(cluster: Cluster, suture: CommandLine, tmp_path: Path) -> int:
    """Store a file, flip a byte of one replica, and scan; return the container."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(200_000))
    stored = suture.json("put", str(path), "--prefix", f"{tmp_path.name}/", "--close")
    suture.wait_until_closed(stored["container_ids"])
    (container_id,) = stored["container_ids"]
    block = newest_block(cluster, 1, container_id)
    content = bytearray(block.read_bytes())
    content[70_000] ^= 8
    block.write_bytes(bytes(content))
    suture("scrub", "scan", str(container_id), "--wait", code=ExitCode.TO_DO)
    return int(container_id)


def test_findings_are_listed_until_they_are_repaired(suture: CommandLine, damaged: int) -> None:
    """
    Each finding names datanode, container, block and fault; after the repair there is none.
    """
    (found,) = suture.json("findings", code=ExitCode.TO_DO)["findings"]
    said = suture("findings", code=ExitCode.TO_DO)
    suture("reconcile", str(damaged))

    assert damaged == found["container_id"]
    assert ("CORRUPT", "CHUNK_CHECKSUM") == (found["verdict"], found["fault"])
    assert "1 finding on 3 datanodes" in said
    assert [] == suture.json("findings")["findings"]


def test_a_scan_that_nobody_waits_for_is_put_in_line(
    cluster: Cluster, suture: CommandLine, damaged: int
) -> None:
    """
    The command returns at once; the datanodes read, and what they find is there to be listed.
    """
    suture("reconcile", str(damaged))
    block = newest_block(cluster, 1, damaged)
    content = bytearray(block.read_bytes())
    content[70_000] ^= 8
    block.write_bytes(bytes(content))

    queued = suture.json("scrub", "scan", str(damaged))["datanodes"]

    assert [True] * 3 == [answer["queued"] for answer in queued.values()]
    with Peer(cluster.nodes[1].address) as peer:
        suture.wait_until(lambda: bool(peer.findings(ContainerId(damaged))))
    assert "in line" in suture("scrub", "scan", str(damaged))
    assert "--wait" in suture.json("scrub", "scan", "1", "--full-speed", code=1)["error"]["hint"]
    suture("reconcile", str(damaged))


def test_status_answers_in_one_line(
    cluster: Cluster, suture: CommandLine, damaged: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first line has the share verified in time, the oldest scan and the pending repairs."""
    first = suture("status", code=ExitCode.TO_DO).splitlines()[0]
    capsys.readouterr()
    alone_code = run(["status", "--datanode", cluster.nodes[1].address])
    alone = capsys.readouterr().out.splitlines()[0]
    suture("reconcile", str(damaged))

    assert "of bytes verified within 7 d; " in first
    assert "; 1 finding awaits repair; " in first
    assert "; 1 finding awaits repair; " in alone
    assert ExitCode.TO_DO == alone_code
    suture.wait_until(lambda: status_code(capsys, cluster.scm.address) == ExitCode.OK)
    assert "; no damage is known; " in suture("status").splitlines()[0]


def status_code(capsys: pytest.CaptureFixture[str], address: str) -> int:
    """Return the exit code of status; of a repair the control plane hears a moment later."""
    code = run(["status", "--scm", address])
    capsys.readouterr()
    return code


def test_a_silent_datanode_stands_in_the_first_sentence(
    suture: CommandLine, tmp_path: Path
) -> None:
    """Its data is not included in any claim, and the exit code reports a problem."""
    with Cluster(tmp_path / "own", agents=2, volumes=1, launch=forked) as own:
        command = CommandLine(own.scm.address, suture.capsys)
        command.wait_until(lambda: len(command.json("scm", "nodes")["nodes"]) == 2)
        command.wait_until(lambda: command.json_any("status")["verdict"] == "WHOLE")
        own.nodes[1].kill()
        told = command.json("status", code=ExitCode.UNAVAILABLE)
        first = command("status", code=ExitCode.UNAVAILABLE).splitlines()[0]

    assert first == told["summary"]
    assert first.startswith("1 of 2 datanodes do not answer")
    assert "no damage is known" not in first
    assert told["healthy"] is False


def test_line_for_nagios_has_the_exit_codes_and_numbers_of_a_plugin(
    suture: CommandLine, damaged: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output is one line. An unreachable control plane is UNKNOWN, and on stdout, too."""
    critical = suture("status", "--nagios", code=ExitCode.TO_DO)
    suture("reconcile", str(damaged))
    suture.status_when_well()
    well = suture("status", "--nagios")
    unknown_code = run(["status", "--nagios", "--scm", "127.0.0.1:1"])
    unknown = capsys.readouterr().out

    lines = [text.splitlines() for text in (critical, well, unknown)]
    assert [1, 1, 1] == [len(text) for text in lines]
    (text, figures), (well_text, _) = (line[0].split(" | ") for line in lines[:2])
    values = dict(item.split("=") for item in figures.split())
    assert text.startswith("SUTURE DEGRADED: 1 container with damaged replicas")
    assert ("3", "0", "1") == tuple(
        values[name] for name in ("datanodes", "datanodes_silent", "findings")
    )
    assert (
        int(values["data"].removesuffix("B")) >= int(values["data_in_time"].removesuffix("B")) > 0
    )
    assert well_text.startswith("SUTURE WHOLE: 100 % of bytes verified")
    assert ExitCode.UNAVAILABLE == unknown_code
    assert unknown.startswith("SUTURE UNKNOWN: ")


def test_a_silent_datanode_keeps_no_other_from_pausing_its_scans(
    suture: CommandLine, tmp_path: Path
) -> None:
    """The silent datanode is listed beside the datanodes that obeyed. If none obeys, there is
    only an error.
    """
    with Cluster(tmp_path / "own", agents=2, volumes=1, launch=forked) as own:
        command = CommandLine(own.scm.address, suture.capsys)
        command.wait_until(lambda: len(command.json("scm", "nodes")["nodes"]) == 2)
        live, dead = (node_id(command, node.address) for node in own.nodes)
        (volume,) = command.json("volumes", "--datanode", live)["volumes"]
        own.nodes[1].kill()

        paused = command.json("scrub", "pause", "--for", "10min", code=ExitCode.TO_DO)["datanodes"]
        shown = command("scrub", "status", code=ExitCode.TO_DO)
        cancelled = command.json("scrub", "scan", "7", "--cancel", code=ExitCode.TO_DO)["datanodes"]
        resumed = command.json("scrub", "pause", "--end", "--volume", volume["volume_id"])[
            "datanodes"
        ]
        counts = [command(*what, code=ExitCode.TO_DO) for what in (["findings"], ["history"])]
        command("scrub", "pause", "--volume", "nowhere", code=ExitCode.UNAVAILABLE)
        own.nodes[0].kill()
        command("scrub", "status", code=ExitCode.UNAVAILABLE)

    assert all(" on 1 of 2 datanodes" in count for count in counts)
    assert "paused" == paused[live]["volumes"][0]["state"]
    assert "unavailable" in paused[dead]["error"]
    assert "paused for" in shown
    assert f"{dead[:8]} does not answer: " in shown
    assert {live, dead} == set(cancelled)
    assert "paused" != resumed[live]["volumes"][0]["state"]
    assert {live} == set(resumed), "the volume of a datanode is asked for at no other"


def node_id(command: CommandLine, address: str) -> str:
    """Return the id of the datanode at an address."""
    nodes = command.json("scm", "nodes")["nodes"]
    return next(str(node["datanode_id"]) for node in nodes if node["address"] == address)


def test_volumes_are_shown_with_their_health(suture: CommandLine, cluster: Cluster) -> None:
    """
    Every volume of every datanode is there, with numbers that are numbers.
    """
    shown = suture.json("volumes")["volumes"]

    assert {str(cluster.volume_paths(index)[0]) for index in range(3)} == {
        volume["path"] for volume in shown
    }
    assert all(isinstance(volume["capacity_bytes"], int) for volume in shown)
    assert "good" in suture("volumes")


def test_disk_with_errors_is_listed_to_be_replaced(
    suture: CommandLine, cluster: Cluster, damaged: int
) -> None:
    """The list has the disk of the damaged replica, with the errors since its last full pass
    began."""
    shown = suture.json_any("volumes")["volumes"]
    text = suture("volumes")
    suture("reconcile", str(damaged))

    worn = {volume["path"]: volume["replace_reasons"] for volume in shown}
    path = str(cluster.volume_paths(1)[0])
    [reason] = worn.pop(path)
    assert re.fullmatch(r"\d+ errors? in the last full pass", reason)
    assert [[], []] == [*worn.values()]
    assert reason in text.partition("replace next")[2]


def test_worst_disk_is_replaced_first() -> None:
    """A failed disk is worse than one whose check failed, more errors than fewer, and slow disks
    are last."""
    slow = (pb.VolumeStatus(slow="9 times slower"), pb.VolumeScrub())
    few = (pb.VolumeStatus(), pb.VolumeScrub(last_pass=pb.ScrubPass(found_count=2)))
    many = (pb.VolumeStatus(slow="slower"), pb.VolumeScrub(last_pass=pb.ScrubPass(found_count=9)))
    doubtful = (pb.VolumeStatus(), pb.VolumeScrub(check="cannot read"))
    failed = (pb.VolumeStatus(failed=True, error="fenced"), pb.VolumeScrub(check="cannot read"))

    disks = sorted([few, failed, slow, doubtful, many], key=lambda one: wear_rank(*one))

    assert [slow, few, many, doubtful, failed] == disks
    assert ["failed: fenced"] == replace_reasons(*failed)
    assert ["9 errors in the last full pass", "slow: slower"] == replace_reasons(*many)
    assert [] == replace_reasons(pb.VolumeStatus(), pb.VolumeScrub())


def test_top_looks_as_often_as_it_is_told(suture: CommandLine) -> None:
    """
    Two looks are two tables of all datanodes.
    """
    said = suture("top", "--count", "2", "--every", "0.1")

    assert 6 == said.count("/vol1")


def test_a_datanode_that_does_not_answer_is_named(suture: CommandLine) -> None:
    """
    Silence is something to do, not an empty table.
    """
    said = suture("volumes", "--datanode", "127.0.0.1:1", code=ExitCode.TO_DO)

    assert "127.0.0.1:1"[:8] in said
    assert "does not answer" in said


def test_history_tells_damage_and_repair(suture: CommandLine, damaged: int) -> None:
    """
    The damaged replica has three roots, the last as the first; the order to repair stands there.
    """
    suture("reconcile", str(damaged))

    told = suture.json("history", str(damaged))
    said = suture("history", str(damaged))

    lengths = sorted(len(replica["entries"]) for replica in told["replicas"].values())
    (entries,) = (r["entries"] for r in told["replicas"].values() if r["entries"][1:])
    assert [1, 1, 3] == lengths
    assert entries[0]["root"] == entries[2]["root"] != entries[1]["root"]
    assert "damaged: 1 CHUNK_CHECKSUM" == entries[1]["reason"]
    assert "closed with 1 block" in said
    assert "reconcile: converged, 1 chunk repaired" in said
    assert said.index("damaged: 1 CHUNK_CHECKSUM") < said.index("reconcile: converged, 1 chunk")
    assert "5 older lines left out" in suture("history", str(damaged), "--count", "6")


def test_the_history_of_nothing_is_refused(suture: CommandLine) -> None:
    """An unknown container is an error with a code, not an empty table."""
    refused = suture.json("history", "99999", code=ExitCode.FAILED)

    assert "CONTAINER_NOT_FOUND" == refused["error"]["code"]


def test_the_evidence_is_bundled(suture: CommandLine, damaged: int, tmp_path: Path) -> None:
    """
    The bundle has the container, its outcomes, and each replica's tree and findings.
    """
    path = tmp_path / "evidence.tar.gz"
    suture("diagnose", str(damaged), "--output", str(path))

    with tarfile.open(path) as bundle:
        documents = {
            member.name.removeprefix(f"container-{damaged}/"): json.load(content)
            for member in bundle
            if (content := bundle.extractfile(member)) is not None
        }
    before = path.read_bytes()
    suture("diagnose", str(damaged), "--output", str(path), code=ExitCode.FAILED)  # it exists
    assert before == path.read_bytes()
    link = tmp_path / "link.tar.gz"
    link.symlink_to(tmp_path / "nowhere")
    suture("diagnose", str(damaged), "--output", str(link), code=ExitCode.FAILED)
    assert link.is_symlink()
    suture("diagnose", "99999", "--output", str(tmp_path / "no.tar.gz"), code=ExitCode.FAILED)
    assert not (tmp_path / "no.tar.gz").exists()
    suture("reconcile", str(damaged))

    trees = [document for name, document in documents.items() if name.endswith("/tree.json")]
    found = [document for name, document in documents.items() if name.endswith("/findings.json")]
    assert damaged == documents["container.json"]["container_id"]
    assert 3 == len(trees)
    assert [False, True] == sorted(
        {chunk["healthy"] for t in trees for b in t["blocks"] for chunk in b["chunks"]}
    )
    assert 1 == sum(len(document["findings"]) for document in found)


def test_lists_show_only_what_is_on_some_datanodes(suture: CommandLine, damaged: int) -> None:
    """The filter is an id, a prefix of it, or a rack. Silent datanodes are named, so that their
    part does not look empty.
    """
    lists = ("nodes", "queues", "decommission-status", "containers", "hold")
    rack_of = {node["datanode_id"]: node["rack"] for node in suture.json("scm", "nodes")["nodes"]}
    nodes = list(rack_of)
    rack = rack_of[nodes[0]]
    for node in nodes:
        suture("scm", "hold", str(damaged), "--datanode", node)
    suture("scm", "maintenance", *nodes, "--force", "--yes")
    try:
        shown = {
            (what, on): set(node_ids(what, suture.json_any("scm", what, *on)))
            for what in lists
            for on in ((), ("--on", nodes[0][:8]), ("--on", rack))
        }
        suture("scm", "nodes", "--on", "/nowhere", code=ExitCode.FAILED)
        suture.wait_until(
            lambda: bool(
                re.search(
                    r"without all that leave: 0, without all that rest: [1-9]",
                    suture("scm", "decommission-status", code=ExitCode.TO_DO),
                )
            )
        )
    finally:
        suture("scm", "maintenance", *nodes, "--undo")
        suture("scm", "hold", str(damaged), "--release")

    on_rack = {node for node in nodes if rack_of[node] == rack}
    for (what, on), found in shown.items():
        expected = set(nodes)
        if on and what != "containers":  # the container is on all of them
            expected = on_rack if on[1] == rack else {nodes[0]}
        assert (what, on, expected) == (what, on, found)


def node_ids(what: str, answer: Any) -> list[str]:
    """Return the datanodes that an answer names."""
    match what:
        case "queues":
            return [queue["datanode_id"] for queue in answer["nodes"]]
        case "containers":
            return [
                r["datanode"]["datanode_id"] for c in answer["containers"] for r in c["replicas"]
            ]
        case _:
            [rows] = (value for key, value in answer.items() if key != "schema")
            return [row["datanode_id"] for row in rows]


@pytest.mark.usefixtures("damaged")
def test_an_order_is_told_however_its_datanode_is_named(suture: CommandLine) -> None:
    """The datanode is given by id or address, and newer orders went to others. Without a control
    plane, the output says that orders are missing.
    """
    node, other = suture.json_any("scm", "nodes")["nodes"][:2]
    own, others = node["datanode_id"], other["datanode_id"]
    wanted = ("history", "--datanode")
    newest = {name: outcomes_on(suture, name) for name in (own, node["address"], others)}
    by_id = suture.json(*wanted, own)
    by_address = suture.json(*wanted, node["address"])
    nobody = replace(suture, scm="127.0.0.1:1")
    alone = nobody.json(*wanted, node["address"], code=ExitCode.TO_DO)

    assert [own] == newest[own] == newest[node["address"]]
    assert [others] == newest[others]
    told = [event["text"] for event in by_id["events"]]
    assert "close: executed" in told
    assert by_id["events"] == by_address["events"]
    assert "close: executed" not in [event["text"] for event in alone["events"]]
    assert "what was ordered is not known" in alone["errors"][0]


def outcomes_on(suture: CommandLine, name: str) -> list[str]:
    """Return the datanodes of the newest outcome on one."""
    outcomes = suture.json("history", "--commands", "--datanode", name, "--count", "1")["outcomes"]
    return [outcome["datanode_id"] for outcome in outcomes]


def test_error_names_the_missing_object_and_its_kind(
    cluster: Cluster, suture: CommandLine, damaged: int, tmp_path: Path
) -> None:
    """The error distinguishes a missing local file, a missing container, a datanode without a
    port, and a datanode given in place of a volume. A dialled datanode is shown by its id.
    """
    address = cluster.nodes[1].address
    absent = tmp_path / "absent"

    def message(*words: str) -> str:
        return str(suture.json(*words, code=1)["error"]["message"])

    assert f"cannot store {absent}: no such file or directory" == message("put", str(absent))
    assert "no container 77777" in message("ls", "--container", "77777")
    assert [] != suture.json("ls", "--container", str(damaged))["keys"]
    assert "'127.0.0.1' is neither HOST:PORT" in message("status", "--datanode", "127.0.0.1")
    assert "a datanode instead of a volume" in message("volume", "retire", address)
    datanode_id = suture.json_any("status", "--datanode", address)["datanode_id"]
    assert f" {datanode_id[:8]} " in suture("scrub", "status", "--datanode", address)


def test_a_page_that_is_called_is_told_from_a_server_that_is_down(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error says that the port belongs to the web page."""
    page = WebListener("127.0.0.1:0", {})
    page.start()
    try:
        assert ExitCode.UNAVAILABLE == run(["scm", "nodes", "--scm", page.address])
    finally:
        page.stop()

    assert "pages for browsers have ports of their own" in capsys.readouterr().err
