"""The page of the cluster in a real browser, on a wide screen and on a telephone."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scm.api.call_values import Heartbeat
from scm.api.http_pages import HttpStatus
from scm.cluster.nodes import Registration
from suture.runtime.call_thread_pool import CallThreadPool
from suture.runtime.loop import WorkerLoops
from tests.support.browser import CHROMIUM, overflow, shown
from tests.support.control.scm_world import ScmWorld, volume

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]

LONG = "x" * 120  # no place to break it


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Serve the page of a cluster with ordinary and with very long names."""
    with ScmWorld(tmp_path / "scm").running() as world, CallThreadPool(2, 4) as calls:
        for i, name in enumerate(["dn-1", "581ebb66-99aa-4b5c-8d7e-0123456789ab", LONG]):
            path = f"/data/{i}/{LONG if i else 1}"
            disk = replace(volume(), path=path, failed=i == 1, error=LONG)
            registered = Registration(name, f"{name}:9859", f"/{name}", "0.1.0", "", 1, (disk,))
            world.control.datanodes.register(registered)
            world.control.datanodes.heartbeat(Heartbeat(name, 1, (disk,), (), (), ()))
        world.control.note_history()
        listener = HttpStatus(world.control, calls, WorkerLoops(), lambda: True).listener(
            "127.0.0.1:0"
        )
        listener.start()
        try:
            yield f"http://{listener.address}"
        finally:
            listener.stop()


def test_a_browser_shows_all_of_it_without_a_complaint(address: str, tmp_path: Path) -> None:
    """The policy of the page blocks nothing that it needs; links lead to racks and datanodes."""
    page = shown(f"{address}/", tmp_path / "profile")

    assert "Unknown: safe mode" in page or "Degraded: " in page
    for heading in ("Being repaired", "Racks", "Datanodes", "Volumes", "The weeks before"):
        assert f"<h2>{heading}</h2>" in page
    node = shown(f"{address}/?node=dn-1", tmp_path / "profile")
    rack = shown(f"{address}/?rack=%2Fdn-1", tmp_path / "profile")
    assert "<h1>Datanode dn-1</h1>" in node
    assert "<h1>Rack /dn-1</h1>" in rack


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("path", ["/", "/?node=dn-1", f"/?node={LONG}"])
def test_cluster_page_fits_the_screen_width(
    address: str, tmp_path: Path, width: int, path: str
) -> None:
    """No page needs horizontal scrolling, however long the names are."""
    assert 0 >= overflow(f"{address}{path}", tmp_path / "profile", width=width)
