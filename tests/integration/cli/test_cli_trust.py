"""`suture reconcile --trust`: a person decides between replicas that contradict each other."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from merkle.replica import BlockData, ContainerId
from suture.runtime.exit_codes import ExitCode
from suture.wire.clients.peer import Peer
from tests.support.command_line import CommandLine
from tests.support.nursery import forked
from tests.support.process_logs import log_events
from tests.support.terminal import Terminal
from tools.demo.cluster import Cluster
from tools.demo.damage import Target, rewrite_with_row
from tools.demo.damage_choice import replica_root

pytestmark = pytest.mark.slow

SIZE_BYTES = 200_000
LIAR = 2  # the agent whose replica says otherwise


@dataclass(frozen=True, slots=True)
class Contested:
    """A container of which one replica holds other bytes, and a row that fits them."""

    cluster: Cluster
    suture: CommandLine
    container_id: int
    ids: tuple[str, ...]  # of the datanodes, by agent
    content: bytes

    def versions(self) -> list[bytes]:
        """Return the bytes of the block that lie on each datanode's disk."""
        roots = [replica_root(self.cluster, n, self.container_id) for n in range(3)]
        return [next(root.glob("chunks/*.block")).read_bytes() for root in roots]

    def quarantined(self) -> list[bytes]:
        """Return what the liar keeps in quarantine."""
        [path] = self.cluster.volume_paths(LIAR)
        return [kept.read_bytes() for kept in path.glob("hdds/*/quarantine/*.bytes")]

    def audited(self, agent: int) -> list[dict[str, Any]]:
        """Return what was written down of decisions at a datanode."""
        audited = log_events(self.cluster.root / f"datanode{agent + 1}.log", "audit")
        return [one for one in audited if one["action"] == "TrustReplica"]

    def command(self) -> list[str]:
        """Return the command line of the decision."""
        trusted = ("reconcile", str(self.container_id), "--trust", self.ids[0])
        return [*trusted, "--scm", self.cluster.scm.address]

    def contradictions(self) -> list[int]:
        """Return how many contradictions the control plane knows of, by replica."""
        found = self.suture.json("scm", "containers", str(self.container_id))["replicas"]
        return [int(one["replica"].get("contradiction_count", 0)) for one in found]


@pytest.fixture
def contested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Contested]:
    """Store a file in three replicas, and make one of them lie about it."""
    sections = "[scan]\nenabled = false\nwatch = false\n"
    with Cluster(
        tmp_path / "c", agents=3, volumes=1, agent_sections=sections, launch=forked
    ) as cluster:
        suture = CommandLine(cluster.scm.address, capsys)
        content = os.urandom(SIZE_BYTES)
        (tmp_path / "file").write_bytes(content)
        [container_id] = suture.json("put", str(tmp_path / "file"), "--close")["container_ids"]
        suture.wait_until_closed([container_id])
        ids = []
        for node in cluster.nodes:
            with Peer(node.address) as peer:
                ids.append(peer.status().datanode_id)
                [block] = peer.blocks_of(ContainerId(container_id))
        rewrite(cluster, container_id, block)
        made = Contested(cluster, suture, container_id, tuple(ids), content)
        suture("scrub", "scan", str(container_id), "--wait")
        suture.wait_until(lambda: any(made.contradictions()) or not reconcile(made))
        yield made


def rewrite(cluster: Cluster, container_id: int, block: BlockData) -> None:
    """Change bytes and row of the liar's replica while its agent is stopped."""
    cluster.nodes[LIAR].stop()
    rewrite_with_row(
        Target(
            container_id=container_id,
            root=replica_root(cluster, LIAR, container_id),
            block_ids=(block.block_id,),
            chunk_bytes=(block.chunks[0].length_bytes,),
            block_bytes=(block.length_bytes,),
        )
    )
    cluster.start_again(LIAR)


def reconcile(contested: Contested) -> bool:
    """Let the replicas hear each other; false, since that decides nothing."""
    contested.suture.json_any("reconcile", str(contested.container_id))
    return True


def test_a_person_decides(contested: Contested) -> None:
    """The changes are shown before the question. A no changes nothing. A yes copies the trusted
    version everywhere, keeps the replaced bytes, and is in the audit log.
    """
    right, also_right, wrong = before = contested.versions()
    assert (right, right) == (contested.content, also_right)
    assert SIZE_BYTES == sum(a != b for a, b in zip(right, wrong, strict=True))
    suture, command = contested.suture, contested.command()[:-2]

    [shown] = [one for one in suture.json(*command, "--dry-run")["replicas"] if one["change_count"]]
    refused = suture.json(*command, code=ExitCode.FAILED)["error"]
    with Terminal(contested.command()) as terminal:
        declined = terminal.answer("n")

    assert (contested.ids[LIAR], [SIZE_BYTES]) == (
        shown["datanode_id"],
        [change["length_bytes"] for change in shown["changes"]],
    )
    assert "stdin is not a terminal" in refused["message"]
    assert contested.ids[LIAR] in terminal.shown
    assert f"replace as shown, trusting {contested.ids[0]}?" in terminal.shown
    assert ExitCode.FAILED == declined
    assert before == contested.versions()
    assert {True} == {bool(one.get("dry_run")) for one in contested.audited(LIAR)}

    with Terminal(contested.command()) as terminal:
        accepted = terminal.answer("y")

    assert ExitCode.OK == accepted, terminal.shown
    assert f"{contested.ids[LIAR]}: converged, 0 chunks failed" in terminal.shown
    assert [contested.content] * 3 == contested.versions()
    assert wrong in contested.quarantined()
    [done] = [one for one in contested.audited(LIAR) if not one.get("dry_run")]
    assert ("OK", contested.container_id, contested.ids[0]) == (
        done["result"],
        done["container_id"],
        done["trusted_datanode_id"],
    )
    suture.wait_until(lambda: not any(contested.contradictions()))
