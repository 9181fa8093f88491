"""What the control plane shows over plain HTTP."""

import re
import shutil
import subprocess
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from scm.api.http_pages import HttpStatus
from suture.runtime.call_thread_pool import LATE_S, CallThreadPool
from suture.runtime.loop import NoMoreWork, Step, WorkerLoop, WorkerLoops
from tests.support.clock import FakeClock
from tests.support.control.scm_process import ScmProcess, spawn
from tests.support.control.scm_world import ScmWorld, replica
from tests.support.packaging.monitoring import METRIC, expressions, without_suffix

ROOT = Path(__file__).resolve().parents[4]


class Mortal:
    """A worker whose thread ends as none may."""

    name = "mortal"

    def step(self) -> Step:
        """End the thread."""
        raise SystemExit


class Finished(Mortal):
    """A worker that ends as it should."""

    name = "finished"

    def step(self) -> Step:
        """Be done."""
        return NoMoreWork()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Three nodes."""
    with ScmWorld(tmp_path / "scm").running() as made:
        made.join("dn1", "dn2", "dn3")
        yield made


def values(text: str) -> dict[str, float]:
    """Return the samples of an exposition by name and labels."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def scraped(world: ScmWorld) -> dict[str, float]:
    """Return what a scrape of a control plane in this process gives."""
    with CallThreadPool(2, 4) as calls:
        watched = HttpStatus(world.control, calls, WorkerLoops(), lambda: True)
        return values(watched.metrics().body.decode())


def test_a_scrape_counts_what_is_there(world: ScmWorld) -> None:
    """Nodes, containers, what is wrong with them, and what is pending."""
    box = world.made_closed(roots=(7, 7, 8))
    world.control.admin.reconcile([box.container_id])
    world.control.tick()
    world.control.queries.count_containers()
    world.beat("dn1", replica("dn1", container_id=99))

    found = scraped(world)

    assert 3 == found['suture_scm_nodes{health="HEALTHY",op_state="IN_SERVICE"}']
    assert 1 == found['suture_scm_containers{state="CLOSED"}']
    assert 1 == found["suture_scm_divergent_containers"]
    assert 0 == found["suture_scm_lost_containers"]
    assert 3 == found['suture_scm_pending_commands{type="reconcile"}']
    assert 0 < found["suture_scm_lock_held_seconds_count"]


def test_every_metric_that_is_declared_is_there(world: ScmWorld) -> None:
    """A metric that is declared but not exported could not be queried."""
    text = (ROOT / "scm" / "api" / "metrics.py").read_text()
    declared = {without_suffix(name) for name in re.findall(r"\"(suture_\w+)\"", text)}

    with CallThreadPool(2, 4) as calls:
        watched = HttpStatus(
            world.control, calls, WorkerLoops([WorkerLoop(Finished())]), lambda: True
        )
        told = watched.metrics().body.decode()

    names = {without_suffix(n) for n in re.findall(r"^# TYPE (suture_\w+)", told, re.MULTILINE)}
    assert names >= declared
    assert len(declared) >= 15


def test_everything_that_alerts_and_dashboard_ask_for_is_told(world: ScmWorld) -> None:
    """A panel of a metric that is not exported stays empty, and an alert never fires."""
    text = (ROOT / "scm" / "api" / "metrics.py").read_text()
    declared = {without_suffix(name) for name in METRIC.findall(text)}
    asked = {without_suffix(name) for text in expressions() for name in METRIC.findall(text)}

    with CallThreadPool(2, 4) as calls:
        watched = HttpStatus(
            world.control, calls, WorkerLoops([WorkerLoop(Finished())]), lambda: True
        )
        told = watched.metrics().body.decode()

    names = {without_suffix(n) for n in re.findall(r"^# TYPE (suture_\w+)", told, re.MULTILINE)}
    assert set() == (asked & declared) - names
    assert len(asked & declared) > 20


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_say(world: ScmWorld) -> None:
    """Names, types and help texts follow the rules of Prometheus."""
    world.made_closed()
    with CallThreadPool(2, 4) as calls:
        watched = HttpStatus(
            world.control, calls, WorkerLoops([WorkerLoop(Finished())]), lambda: True
        )
        told = watched.metrics().body

    checked = subprocess.run(
        ["promtool", "check", "metrics"],  # noqa: S607 - Debian's
        input=told,
        capture_output=True,
        timeout=60,
    )

    assert (0, b"", b"") == (checked.returncode, checked.stdout, checked.stderr)


@pytest.mark.parametrize("verdict", ["WHOLE", "UNKNOWN", "DEGRADED"])
def test_the_verdict_is_told_with_all_its_words(world: ScmWorld, verdict: str) -> None:
    """Exactly one of them is 1, so an alert on another one sees a 0 instead of no data."""
    told = scraped(world)

    assert float(verdict == "UNKNOWN") == told[f'suture_scm_verdict{{verdict="{verdict}"}}']


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # as intended
def test_healthz_reports_a_stalled_clock_and_dead_workers(world: ScmWorld) -> None:
    """A worker that has finished is not reported."""
    loops = WorkerLoops([WorkerLoop(Mortal()), WorkerLoop(Finished())])
    loops.start()
    loops.stop(10)

    with CallThreadPool(2, 4) as calls:
        well = HttpStatus(world.control, calls, WorkerLoops(), lambda: True).healthz()
        sick = HttpStatus(world.control, calls, loops, lambda: False).healthz()

    assert (200, b"well\n") == (well.status, well.body)
    assert 503 == sick.status
    assert [
        "time stands still: no tick has ended lately",
        "worker mortal shows no life",
    ] == sick.body.decode().splitlines()


def test_calls_that_find_no_thread_are_said(world: ScmWorld) -> None:
    """No call is answered then, so the health check must not report success."""
    clock = FakeClock()
    with CallThreadPool(1, 4, monotonic_s=clock.monotonic_s) as calls:
        watched = HttpStatus(world.control, calls, WorkerLoops(), lambda: True)
        calls.acquire()
        found = Event()
        calls.submit(calls.acquire).add_done_callback(lambda _: found.set())
        deadline_s = time.monotonic() + 30
        while not calls.waiting_count:
            assert time.monotonic() < deadline_s, "it found a slot"
            Event().wait(0.01)
        early = watched.healthz()
        clock.advance_s(LATE_S)
        late, sample = watched.healthz(), values(watched.metrics().body.decode())
        calls.release()
        assert found.wait(10)

        assert (200, b"well\n") == (early.status, early.body)
        assert (503, b"1 calls wait for a thread, the first for 5 s\n") == (late.status, late.body)
        assert 1 == sample["suture_scm_calls_overloaded"]


def test_a_process_answers_and_stops(tmp_path: Path) -> None:
    """suture-scm with a listener: all pages, and nothing of it is left after SIGTERM."""
    scm = ScmProcess.start(tmp_path, observe_listen="127.0.0.1:0")
    try:
        pages = {
            path: urllib.request.urlopen(f"http://{scm.listening['web']}{path}", timeout=30)
            .read()
            .decode()
            for path in ("/", "/healthz", "/metrics")
        }
    finally:
        code = scm.terminate()

    assert 0 == code
    assert "well\n" == pages["/healthz"]
    assert "Unknown: " in pages["/"]
    assert "no datanode has registered yet" in pages["/"]
    release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    found = values(pages["/metrics"])
    assert (1, 1) == (found["suture_scm_term"], found[f'suture_scm_info{{version="{release}"}}'])
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://{scm.listening['web']}/healthz", timeout=5)


def test_the_weeks_before_outlive_a_killed_process(tmp_path: Path) -> None:
    """The history is on the medium, and the page shows the time without a running control plane."""
    for term in (1, 2):
        scm = ScmProcess.start(tmp_path, observe_listen="127.0.0.1:0", heartbeat_interval_ms=100)
        try:
            address, deadline_s = f"http://{scm.listening['web']}/", time.monotonic() + 30
            page = ""
            while page.count("The control plane started") < term:
                assert time.monotonic() < deadline_s, page
                page = urllib.request.urlopen(address, timeout=30).read().decode()
                Event().wait(0.05)
        finally:
            scm.kill()

    assert "The control plane started for the first time" in page
    assert "The control plane started; nobody watched since" in page


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1:", "web"])
def test_an_address_that_cannot_be_taken_is_refused(tmp_path: Path, address: str) -> None:
    """Before it serves anybody."""
    process = spawn(tmp_path, observe_listen=address)

    _out, error = process.communicate(60)

    assert 1 == process.returncode
    assert f"suture-scm: cannot listen on {address} for HTTP" in error
    assert "Traceback" not in error
