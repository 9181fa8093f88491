"""What Prometheus, a browser and a load balancer see of a running agent."""

import json
import os
import re
import shutil
import subprocess
import time
import tomllib
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from suture.runtime.exit_codes import ExitCode
from tests.support.browser import CHROMIUM, overflow, shown
from tests.support.command_line import CommandLine
from tests.support.nursery import forked
from tests.support.packaging.monitoring import METRIC, expressions, without_suffix
from tests.support.storage.blocks_on_disk import newest_block
from tools.demo.cluster import Cluster

pytestmark = pytest.mark.slow

WAIT_S = 30.0
ROOT = Path(__file__).resolve().parents[3]
SCM_METRICS = ROOT / "scm" / "api" / "metrics.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of three agents that scan at once."""
    sections = "[scan]\nstart_jitter_s = 0\nwatch = false\n"
    root = tmp_path_factory.mktemp("observed")
    with Cluster(root, agents=3, volumes=1, agent_sections=sections, launch=forked) as running:
        yield running


@pytest.fixture
def container_id(suture: CommandLine, tmp_path: Path) -> int:
    """Store a file and close its container."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(300_000))
    stored = suture.json("put", str(path), "--prefix", f"{tmp_path.name}/", "--close")
    suture.wait_until_closed(stored["container_ids"])
    (found,) = stored["container_ids"]
    return int(found)


def web_address(cluster: Cluster, index: int) -> str:
    """Return where an agent listens for browsers."""
    return cluster.nodes[index].web_address


def fetched(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    """Return status and text of a page."""
    with closing(HTTPConnection(address, timeout=WAIT_S)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def metrics(address: str) -> dict[tuple[str, str], float]:
    """Return what a scrape says: (name, label values) -> value."""
    _, text = fetched(address, "/metrics")
    return {
        (sample.name, ",".join(sample.labels[key] for key in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def wait_for(address: str, name: str, labels: str, least: float) -> float:
    """Wait until a metric has at least this value; return it."""
    deadline_s = time.monotonic() + WAIT_S
    while (value := metrics(address).get((name, labels), -1)) < least:
        assert time.monotonic() < deadline_s, f"{name} stays at {value}"
    return value


def test_a_scrape_counts_what_was_verified(
    cluster: Cluster, suture: CommandLine, container_id: int
) -> None:
    """
    The bytes of a closed replica are in the histogram of verified ages once they were read.
    """
    address, path = web_address(cluster, 0), str(cluster.volume_paths(0)[0])
    suture("scrub", "scan", str(container_id), "--wait")

    verified = wait_for(address, "suture_verified_age_seconds_bucket", f"3600.0,{path}", 300_000)

    found = metrics(address)
    assert verified <= found["suture_verified_age_seconds_count", path]
    assert 0 < found["suture_scan_deadline_slack_seconds", path] <= 7 * 86_400
    assert 0 == found["suture_volume_failed", path]
    assert 0 == found["suture_findings", ""]


def test_damage_and_its_repair_are_counted(
    cluster: Cluster, suture: CommandLine, container_id: int
) -> None:
    """
    A flipped byte is a finding of its class; the reconcile that mends it is counted with its bytes.
    """
    address = web_address(cluster, 0)
    before = metrics(address)["suture_reconcile_fetched_bytes_total", "data"]
    block = newest_block(cluster, 0, container_id)
    content = bytearray(block.read_bytes())
    content[1000] ^= 1
    block.write_bytes(bytes(content))

    suture("scrub", "scan", str(container_id), "--wait", code=ExitCode.TO_DO)
    found = metrics(address)
    page = fetched(address, "/")[1]
    suture("reconcile", str(container_id))

    assert 1 == found["suture_findings_by_class", "CHUNK_CHECKSUM,CORRUPT"]
    assert 1 == found["suture_damaged_replicas", ""]
    assert "CHUNK_CHECKSUM" in page
    assert "1 finding awaits repair" in page
    words = ["How far the scan is", "When bytes were last verified", "closed with 1 block"]
    places = [page.index(text) for text in [*words, "damaged: 1 CHUNK_CHECKSUM", "Inside: workers"]]
    assert max(places) == places[-1], "how the process works comes last"
    after = metrics(address)
    assert 1 <= after["suture_reconciles_total", "converged"]
    assert before < after["suture_reconcile_fetched_bytes_total", "data"]
    assert 0 == after["suture_findings", ""]


def test_health_is_told_volume_by_volume(cluster: Cluster) -> None:
    """A healthy agent answers 200 and names its volumes."""
    status, text = fetched(web_address(cluster, 1), "/healthz")

    document = json.loads(text)
    assert (200, True, []) == (status, document["healthy"], document["problems"])
    assert [str(path) for path in cluster.volume_paths(1)] == [
        volume["path"] for volume in document["volumes"]
    ]


def test_grpc_health_says_what_healthz_says(cluster: Cluster) -> None:
    """
    The standard health service answers for the whole and for its service; another is not known.
    """
    process = cluster.nodes[1]
    serving = health_pb2.HealthCheckResponse.SERVING
    with grpc.insecure_channel(process.address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        answers = [
            check(health_pb2.HealthCheckRequest(service=name), timeout=WAIT_S).status
            for name in ("", "suture.v1.Datanode")
        ]
        with pytest.raises(grpc.RpcError) as unknown:
            check(health_pb2.HealthCheckRequest(service="suture.v1.Scm"), timeout=WAIT_S)

    assert [serving, serving] == answers
    assert grpc.StatusCode.NOT_FOUND == unknown.value.code()


def test_everything_that_is_asked_for_is_in_a_scrape(cluster: Cluster) -> None:
    """Every metric that alerts and dashboard use is exported by a running agent."""
    told = set(re.findall(r"^# TYPE (\S+) ", fetched(web_address(cluster, 0), "/metrics")[1], re.M))
    names = {re.sub(r"_total$", "", name) for name in told}

    asked = {without_suffix(name) for text in expressions() for name in METRIC.findall(text)}
    scm = {without_suffix(name) for name in METRIC.findall(SCM_METRICS.read_text())}
    asked -= scm  # told elsewhere
    # test_ozone_service.py looks at those.
    asked = {name for name in asked if not name.startswith("suture_ozone_")}
    assert not asked - names
    assert len(asked) > 15


def test_a_scrape_has_the_version_of_the_agent(cluster: Cluster) -> None:
    """The version is that of the project."""
    release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    text = fetched(web_address(cluster, 0), "/metrics")[1]

    (labels,) = re.findall(r"^suture_agent_info\{(.*)\} 1\.0$", text, re.MULTILINE)
    assert f'version="{release}"' in labels.split(",")


def test_the_listener_only_reads(cluster: Cluster) -> None:
    """
    Unknown paths are not found, and no method but GET and HEAD is answered.
    """
    address = web_address(cluster, 1)
    assert 501 == fetched(address, "/", "POST")[0]
    assert 501 == fetched(address, "/", "DELETE")[0]
    assert (200, "") == fetched(address, "/healthz", "HEAD")
    assert 404 == fetched(address, "/../../etc/passwd")[0]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_say(cluster: Cluster) -> None:
    """Names, types and help texts follow the rules of Prometheus."""
    _, text = fetched(web_address(cluster, 0), "/metrics")

    checked = subprocess.run(
        ["promtool", "check", "metrics"],  # noqa: S607 - Debian's
        input=text,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )

    assert (0, "", "") == (checked.returncode, checked.stdout, checked.stderr)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_shows_the_page(cluster: Cluster, tmp_path: Path, container_id: int) -> None:
    """
    A real browser loads the page without a complaint and shows the answer and the tables, on a
    wide screen and on a telephone.
    """
    assert container_id
    address = f"http://{web_address(cluster, 0)}/"

    page = shown(address, tmp_path / "profile")

    assert "of bytes verified within 7 d" in page
    assert str(cluster.volume_paths(0)[0]) in page
    for width in (390, 1400):
        assert 0 >= overflow(address, tmp_path / "profile", width=width)
