"""The demo, as its user runs it: it heals everything, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from suture.errors import RefusedError
from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.printed_json import document_in
from tests.support.storage.three_replicas import content
from tests.support.verification.java import skip_without_java
from tools.demo.command import Steps
from tools.demo.damage_choice import BLOCK_BYTES_MIN, BLOCKS_MIN
from tools.demo.stage import are_known
from tools.demo.story import collect, lanes_for

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.spark]

DEMO_TIMEOUT_S = 1_200.0  # its steps have deadlines of their own; this one ends a demo that hangs
WAIT_S = 60.0
LOG_CHARS = 20_000
WAYS = {
    "appended garbage",
    "bit flip under a warm cache",
    "damaged descriptor",
    "deleted block file",
    "deleted metadata row",
    "misdirected write",
    "stale tree file",
    "swapped blocks",
    "truncation",
    "zeroed page",
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a directory with enough files to damage."""
    directory = tmp_path / "files"
    directory.mkdir()
    for number in range(150):
        (directory / f"file{number:03}").write_bytes(content(number, 0, 9_000 + number * 101))
    (directory / "large").write_bytes(content(1000, 0, 9_000_000))
    return directory


def log_of(work: Path) -> str:
    """Return the end of the control plane's log: what a demo that waits in vain leaves to go by."""
    return "".join(path.read_text()[-LOG_CHARS:] for path in work.rglob("scm.log"))


def processes_below(root: Path) -> list[str]:
    """Return the command lines of processes that work below `root`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # it ended while we looked
                continue
            if str(root) in line:
                found.append(line)
    return found


def test_a_directory_with_too_few_files_is_refused_at_once(tmp_path: Path) -> None:
    """The error has the number of files found and of those needed, before anything starts."""
    for number in range(BLOCKS_MIN - 1):
        (tmp_path / str(number)).write_bytes(bytes(BLOCK_BYTES_MIN))
    (tmp_path / "small").write_bytes(b"")

    with pytest.raises(RefusedError, match=f"{BLOCKS_MIN - 1} files .* {BLOCKS_MIN} are needed"):
        collect([tmp_path])
    (tmp_path / "one more").write_bytes(bytes(BLOCK_BYTES_MIN))

    assert 1 == lanes_for(collect([tmp_path]))


def test_an_interrupt_that_a_library_swallows_ends_the_story_with_the_step() -> None:
    """
    A signal is remembered: when its exception gets lost in a callback, the next step raises it.
    """
    told: list[str] = []
    steps = Steps(told.append)
    steps("before")
    with suppress(KeyboardInterrupt):  # as a callback of a library does
        steps.interrupt(signal.SIGINT, None)

    with pytest.raises(KeyboardInterrupt):
        steps("after")

    assert ["before"] == told


@pytest.mark.parametrize(
    ("state", "root", "is_known"),
    [
        (container_pb2.UNHEALTHY, 7, True),
        (container_pb2.CLOSED, 7, False),
        (container_pb2.UNHEALTHY, 8, False),
        (container_pb2.UNHEALTHY, None, False),
    ],
)
def test_scan_result_counts_as_known_with_its_root(
    state: container_pb2.ReplicaState, root: int | None, is_known: bool
) -> None:
    """A plan with the earlier root would be refused as stale, whatever the state."""

    def report(state: container_pb2.ReplicaState, root: int | None) -> container_pb2.ReplicaReport:
        tree = None if root is None else container_pb2.TreeSummary(root=root)
        return container_pb2.ReplicaReport(state=state, tree=tree)

    info = scm_pb2.ContainerInfo(
        container_id=5,
        replicas=[
            scm_pb2.ContainerInfoReplica(
                datanode=container_pb2.DatanodeEndpoint(datanode_id="dn1"),
                replica=report(state, root),
            )
        ],
    )
    scanned = {("dn1", 5): report(container_pb2.UNHEALTHY, 7)}

    assert is_known is are_known(scanned, [info])
    assert not are_known(scanned | {("dn2", 5): report(container_pb2.CLOSED, 7)}, [info])


def test_everything_is_healed(files: Path, tmp_path: Path) -> None:
    """
    Each of ten ways of damage is found, repaired for the bytes it spoiled, and proven equal again;
    so are a lost and a damaged shard of erasure-coded files, a replica that lies, and the replicas
    of a datanode that dies and comes back.
    """
    skip_without_java()
    work = tmp_path / "work"

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "agent.cli.start",
            "demo",
            str(files),
            "--work",
            str(work),
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=DEMO_TIMEOUT_S,
        check=False,
    )

    assert 0 == done.returncode, done.stdout + done.stderr + log_of(work)
    story = document_in(done.stdout, "demo")
    assert [] == story["not_healed"]
    assert {damage["way"] for damage in story["damages"]} == WAYS
    assert [] == [damage for damage in story["damages"] if not damage["found_as"]]
    assert all(damage["results"] for damage in story["damages"])
    assert 0 < story["spoiled_bytes"]
    assert story["fetched_bytes"] <= 1.05 * story["spoiled_bytes"]
    coded = story["coded"]
    assert coded["rebuilt_on"]
    assert 0 < coded["stripes"]
    assert 0 < coded["damaged_bytes"] <= 65_536
    assert coded["fetched_bytes"] <= 3 * 65_536
    healed = story["selfheal"]
    assert 0 < healed["seconds"] <= 60
    assert 0 < healed["fetched_bytes"]
    contest = story["contest"]
    assert [contest["right"]] == contest["repaired_from"]
    assert contest["liar"] in contest["reported_by"]
    assert "contradict" in contest["status"]
    assert 0 < contest["repaired_bytes"] == contest["replaced_bytes"]
    death = story["death"]
    assert "1 of 5 datanodes do not answer" in death["status"]
    assert death["open_container_id"] in death["container_ids"]
    assert len(death["container_ids"]) == death["made_count"]
    assert 0 < death["removed_count"] <= death["made_count"]
    assert Path(story["report"]).read_text().startswith("<!doctype html>")
    assert [] == list(work.glob("datanode*/"))
    assert [] == processes_below(tmp_path)


def test_an_interrupt_ends_it_cleanly(files: Path, tmp_path: Path) -> None:
    """
    Ctrl-C in the middle stops every process, removes the data, and exits as a shell expects.
    """
    work = tmp_path / "work"
    words = ["demo", str(files), "--agents", "3", "--work", str(work)]
    with subprocess.Popen(
        [sys.executable, "-m", "agent.cli.start", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stderr is not None
        assert "started" in demo.stderr.readline()
        assert processes_below(tmp_path / "work")

        demo.send_signal(signal.SIGINT)

        assert 130 == demo.wait(WAIT_S)
    assert [] == processes_below(tmp_path)
    assert [] == list(work.glob("datanode*/"))
