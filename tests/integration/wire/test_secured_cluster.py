"""A control plane and three agents, each a process, over mutual TLS from end to end."""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

import suture as library
from agent.cli.main import run
from suture.errors import Code, RefusedError, SutureError
from suture.observe.events import EVENTS
from suture.runtime.exit_codes import ExitCode
from suture.wire.clients.scm import ScmClient
from suture.wire.security import pki
from suture.wire.security.caller import Role
from suture.wire.security.tls import TlsFiles, load_security
from suture.wire.v1 import scm_pb2
from tests.support.authority import Authority
from tests.support.command_line import CommandLine
from tests.support.printed_json import document_in
from tests.support.process_logs import log_events
from tests.support.secured_cluster import SecuredCluster, SecuredCommandLine
from tests.support.storage.blocks_on_disk import newest_block
from tests.support.waiting import wait_until
from tools.demo.cluster import Cluster, Process
from tools.demo.damage import Target, flip_bit_under_warm_cache

pytestmark = pytest.mark.slow

WAIT_S = 30.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority of the cluster."""
    return Authority(tmp_path_factory.mktemp("authority") / "tls")


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[SecuredCluster]:
    """Three datanodes and a control plane."""
    with SecuredCluster(tmp_path_factory.mktemp("secured"), authority) as running:
        yield running


Suture = Callable[[str, Role], CommandLine]


@pytest.fixture
def suture(
    cluster: SecuredCluster, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> Suture:
    """Return command lines, each with a certificate of its own."""

    def made(name: str, *roles: Role) -> CommandLine:
        return SecuredCommandLine(cluster.scm.address, capsys, authority.issue(name, *roles))

    return made


def knock(address: str) -> None:
    """Speak plain HTTP to a server that wants TLS; wait until it hangs up."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as door:
        door.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while door.recv(4096):
            pass


def test_a_stranger_leaves_no_plain_text_in_the_logs(cluster: SecuredCluster) -> None:
    """The logs are JSON, one line for each event, also after a connection without TLS."""
    for address in (cluster.scm.address, cluster.nodes[0].address):
        knock(address)

    for process in (cluster.scm, cluster.nodes[0]):
        lines = log_events(process.log)
        assert all(isinstance(line, dict) for line in lines), lines


def test_the_library_works_over_mutual_tls(
    cluster: SecuredCluster, authority: Authority, tmp_path: Path
) -> None:
    """
    With the three files of a client; a certificate of another authority gets nowhere.
    """
    files = authority.issue("program", Role.CLIENT)
    stranger = Authority(tmp_path / "other").issue("program", Role.CLIENT)

    def opened(given: TlsFiles) -> library.Client:
        return library.Client(
            cluster.scm.address,
            tls_certificate=given.certificate,
            tls_key=given.key,
            tls_ca=given.ca,
        )

    with opened(files) as client:
        client.put("library/one", b"over TLS")
        assert b"TLS" == client.get("library/one", start=5)
        assert ["library/one"] == [info.key for info in client.list("library/")]
        client.delete("library/one")
        with pytest.raises(library.KeyNotFound):
            client.info("library/one")
    with opened(stranger) as client, pytest.raises(library.UnavailableError):
        client.info("library/one")


def test_a_cluster_works_over_mutual_tls(
    cluster: SecuredCluster, suture: Suture, tmp_path: Path
) -> None:
    """
    A client stores and reads a file; an operator scans damage, reconciles it from the peers and
    looks at everything; each action is in the audit log of who carried it out, under the name of
    who asked for it.
    """
    client, admin = suture("carol", Role.CLIENT), suture("ada", Role.ADMIN)
    source, back = tmp_path / "file", tmp_path / "back"
    source.write_bytes(os.urandom(300_000))

    stored = client.json("put", str(source), "--close")
    [container_id] = stored["container_ids"]
    admin.wait_until_closed([container_id])
    block = newest_block(cluster, 1, container_id)
    size = block.stat().st_size
    root = block.parents[1]
    flip_bit_under_warm_cache(Target(container_id, root, (int(block.stem),), (size,), (size,)))
    admin("scrub", "scan", str(container_id), "--wait", code=ExitCode.TO_DO)
    mended = admin.json("reconcile", str(container_id))
    client("get", stored["keys"][0]["key"], "--output", str(back))
    admin.status_when_well()
    for words in (
        ("volumes",),
        ("scm", "nodes"),
        ("history", "--commands"),
        ("findings",),
    ):
        admin(*words)
    for words in (("hold", str(container_id)), ("hold",), ("hold", str(container_id), "--release")):
        admin("scm", *words)
    admin("scm", "balance", "--status", "--threshold", "99%")

    assert source.read_bytes() == back.read_bytes()
    assert "converged" in json.dumps(mended)
    ordered = [
        line
        for line in log_events(cluster.root / "scm-audit.jsonl")
        if line["action"] == "ReconcileContainers"
    ]
    assert [("ada", ["admin"], [container_id], "OK")] == [
        (line["who"], line["roles"], line["container_ids"], line["result"]) for line in ordered
    ]
    commands = [
        (line["action"], line["result"], line["datanode_id"])
        for line in log_events(cluster.root / "scm-audit.jsonl")
        if line["who"] == "scm" and line["container_id"] == container_id
    ]
    for node in admin.json("scm", "nodes")["nodes"]:
        for action in ("command close", "command reconcile"):
            for result in ("SENT", "OK"):
                assert (action, result, node["datanode_id"]) in commands
    done = log_events(cluster.root / "audit2.jsonl")
    assert ("ada", "ScanContainer", container_id) in [
        (line["who"], line["action"], line.get("container_id")) for line in done
    ]
    assert ("scm", "command reconcile", container_id, "OK") in [
        (line["who"], line["action"], line.get("container_id"), line["result"]) for line in done
    ]


def test_commands_of_people_are_found_by_their_object(
    cluster: SecuredCluster, suture: Suture, tmp_path: Path
) -> None:
    """The audit logs of the control plane and of each datanode are searched, also rotated files.
    Only commands of people are listed."""
    client, admin = suture("carol", Role.CLIENT), suture("ada", Role.ADMIN)
    source = tmp_path / "found by its name"
    source.write_bytes(b"x")
    stored = client.json("put", str(source), "--close")
    [container_id] = stored["container_ids"]
    admin.wait_until_closed([container_id])
    admin("scrub", "scan", str(container_id), "--wait")
    client("put", str(source), "--replace")
    client("rm", stored["keys"][0]["key"], "--yes")
    log = cluster.root / "audit1.jsonl"
    log.rename(f"{log}.7")

    def found(about: str) -> set[tuple[str, str, str]]:
        shown = admin.json("history", "--audit", "--object", about)
        assert [] == shown["errors"]
        return {(line["program"], line["who"], line["action"]) for line in shown["lines"]}

    nodes = {node["datanode_id"] for node in admin.json("scm", "nodes")["nodes"]}
    assert {("scm", "carol", "CommitKey"), ("scm", "carol", "DeleteKeys")} == found("found by")
    scans = {(node, "ada", "ScanContainer") for node in nodes}
    assert scans == {line for line in found(str(container_id)) if line[2] == "ScanContainer"}
    assert found("ada") >= scans
    everything = admin.json("history", "--audit")["lines"]
    assert {"ada", "carol"} <= {line["who"] for line in everything}
    assert "found by its name" in admin("history", "--audit", "--object", "found by")
    assert [] == admin.json("history", "--audit", "--since", "1ms")["lines"]


def test_the_wrong_certificate_is_told_why(
    cluster: SecuredCluster,
    suture: Suture,
    authority: Authority,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A client may not send commands, an operator may not write, and a datanode may only report
    for itself. Without a certificate no call is answered, and the hint says what is missing.
    """
    client, admin = suture("carol", Role.CLIENT), suture("ada", Role.ADMIN)
    source = tmp_path / "refused"
    source.write_bytes(b"x")

    ordering = client.json("scm", "containers", code=ExitCode.FAILED)
    writing = admin.json("put", str(source), code=ExitCode.FAILED)
    capsys.readouterr()
    code = run(["scm", "nodes", "--json", "--scm", cluster.scm.address])
    bare = document_in(capsys.readouterr().out)

    assert ["PERMISSION_DENIED"] * 2 == [a["error"]["code"] for a in (ordering, writing)]
    assert "carol is client" in ordering["error"]["message"]
    assert (ExitCode.UNAVAILABLE, "UNAVAILABLE") == (code, bare["error"]["code"])
    assert "--tls-certificate" in bare["error"]["hint"]
    own = authority.security("datanode9", Role.PEER, node_id="node-nine")
    with ScmClient(cluster.scm.address, security=own) as scm, pytest.raises(RefusedError) as caught:
        scm.heartbeat(scm_pb2.HeartbeatRequest(datanode_id="node-eight"))
    assert Code.PERMISSION_DENIED == caught.value.code


def test_every_line_of_every_log_is_an_event(cluster: SecuredCluster, suture: Suture) -> None:
    """Each line is JSON and has a name of the vocabulary and its ids. A line of a command has
    the command's id and its container's.
    """
    admin = suture("ada", Role.ADMIN)
    [container, *_] = admin.json("scm", "containers")["containers"]
    admin("reconcile", str(container["container_id"]))
    lines = [line for process in everyone(cluster) for line in log_events(process.log)]

    events = {line["event"] for line in lines}
    assert {"replica_scanned", "replica_reconciled", "task_finished", "container_closing"} <= events
    for line in lines:
        if line["event"] == "listening":  # the one line of stdout
            continue
        assert {"level", "timestamp"} <= set(line), line
        assert set(EVENTS[line["event"]].ids) <= set(line), line
        if line["event"].startswith("task_"):
            assert line["command_id"], line
            assert line["task"] not in {"close", "reconcile"} or line["container_id"], line
        if line["event"] == "replica_reconciled":
            assert (line["task"], bool(line["command_id"])) == ("reconcile", True)


def test_certificates_are_exchanged_under_a_running_cluster(
    cluster: SecuredCluster, suture: Suture, authority: Authority, tmp_path: Path
) -> None:
    """
    New certificates of a new authority come in under the names of the old: after a SIGHUP all
    processes, still the same, use them towards each other; the old authority is worth nothing.
    """
    admin = suture("ada", Role.ADMIN)
    before = pids(cluster)
    ids = {node["datanode_id"] for node in admin.json("scm", "nodes")["nodes"]}
    late = load_security(authority.issue("late", Role.ADMIN))
    following = Authority(tmp_path / "following", "Following CA")
    both = authority.ca.read_bytes() + following.ca.read_bytes()

    authority.ca.write_bytes(both)
    hang_up(cluster)
    wait_until(lambda: heard(cluster, "certificate_reloaded", 1))
    for name in ("scm", "datanode1", "datanode2", "datanode3", "ada"):
        exchange(authority, following, name)
    hang_up(cluster)
    wait_until(lambda: heard(cluster, "certificate_reloaded", 2))
    authority.ca.write_bytes(following.ca.read_bytes())
    hang_up(cluster)
    wait_until(lambda: heard(cluster, "certificate_reloaded", 3))

    nodes = admin.json("scm", "nodes")["nodes"]
    assert before == pids(cluster)
    assert ids == {node["datanode_id"] for node in nodes}
    admin.wait_until(
        lambda: all(n["health"] == "HEALTHY" for n in admin.json("scm", "nodes")["nodes"])
    )
    admin.json("status")  # every datanode answers it
    with ScmClient(cluster.scm.address, security=late) as old, pytest.raises(SutureError) as caught:
        old.list_nodes(scm_pb2.ListNodesRequest())
    assert Code.UNAVAILABLE == caught.value.code


def test_the_expiry_of_the_certificate_is_a_metric(cluster: SecuredCluster) -> None:
    """Monitoring can warn before the certificate expires."""
    [shown] = pki.describe_certificates(cluster.authority.directory / "datanode1.pem")
    with urlopen(f"http://{cluster.nodes[0].web_address}/metrics", timeout=10) as answer:
        text = answer.read().decode()

    [line] = [
        t for t in text.splitlines() if t.startswith("suture_certificate_expiry_timestamp_sec")
    ]
    assert shown.expires_at.timestamp() == float(line.split()[1])


def test_no_secret_is_in_any_log(cluster: SecuredCluster, authority: Authority) -> None:
    """No line of a key is in a log, an audit log or a config, even with a broken key file."""
    key = authority.directory / "datanode1.key"
    good = key.read_text()
    key.write_text(good.replace("-----END", "x-----END"))
    hang_up(cluster)
    wait_until(lambda: heard(cluster, "certificate_reload_failed", 1, of=cluster.nodes[:1]))
    key.write_text(good)

    secrets = [
        line
        for path in authority.directory.glob("*.key")
        for line in path.read_text().splitlines()
        if "-----" not in line
    ]
    written = [
        *cluster.root.glob("*.log"),
        *cluster.root.glob("*.jsonl"),
        *cluster.root.glob("*.toml"),
    ]
    assert len(written) > len(cluster.nodes) * 2
    assert secrets
    for path in written:
        content = path.read_text()
        assert "PRIVATE KEY" not in content, path
        assert not [line for line in secrets if line in content], path


def pids(cluster: Cluster) -> list[int]:
    """Return the ids of all processes."""
    return [process.popen.pid for process in everyone(cluster) if process.popen]


def everyone(cluster: Cluster) -> list[Process]:
    """Return all processes."""
    return [cluster.scm, *cluster.nodes]


def hang_up(cluster: Cluster) -> None:
    """Send SIGHUP to all."""
    for pid in pids(cluster):
        os.kill(pid, signal.SIGHUP)


def heard(cluster: Cluster, event: str, count: int, of: list[Process] | None = None) -> bool:
    """Whether each process has logged an event so often."""
    wanted = everyone(cluster) if of is None else of
    return all(process.log.read_text().count(f'"{event}"') >= count for process in wanted)


def exchange(authority: Authority, following: Authority, name: str) -> None:
    """Put a certificate of the following authority, with the same names, into the place of one."""
    [old] = pki.describe_certificates(authority.directory / f"{name}.pem")
    roles = [Role(role) for role in old.roles]
    fresh = following.issue(name, *roles, node_id=old.node_id)
    for kind in ("key", "certificate"):
        path = getattr(fresh, kind)
        (authority.directory / path.name).write_bytes(path.read_bytes())
