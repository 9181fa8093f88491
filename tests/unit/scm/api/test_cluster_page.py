"""The page of the cluster: what it says is true, bounded, and can do nothing."""

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest

from merkle.replica import ReplicaState
from scm.api.call_values import Heartbeat
from scm.api.http_pages import HttpStatus
from scm.api.pages.ranking import worst_nodes
from scm.cluster.nodes import Registration
from scm.cluster.replica_map import NodeReplicaReport
from scm.state.entities import OpState, ReportedVolume
from suture.runtime.call_thread_pool import CallThreadPool
from suture.runtime.loop import WorkerLoops
from tests.support.control.scm_world import GIB, ScmWorld, container, replica

HOSTILE = (
    "<script>alert(1)</script>",
    "'\"><img src=x onerror=alert(1)>",
    "</title></style><svg/onload=alert(1)>",
    "javascript:alert(1)//",
    "a&b=c#d?e=f%00",
    "\u202egnp.exe\u2066",
    "x" * 200,
)
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "strong", "br", "ul"),
    *("li", "span", "code", "dl", "div", "dt", "dd", "table", "thead", "tr", "th", "tbody", "td"),
    *("a", "i", "svg", "rect", "line", "text"),
}


class Elements(HTMLParser):
    """Remembers the elements of a page and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take in an element."""
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Take in text."""
        self.text += data + " "


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """A cluster that nobody has joined."""
    with ScmWorld(tmp_path / "scm").running() as made:
        yield made


def page(world: ScmWorld, **asked: str) -> str:
    """Return a page, the cluster's if nothing is asked for."""
    with CallThreadPool(2, 4) as calls:
        http = HttpStatus(world.control, calls, WorkerLoops(), lambda: True)
        return http.page(asked).body.decode()


def volume(path: str = "/data", *, failed: bool = False, error: str = "") -> ReportedVolume:
    """Return a volume that holds something."""
    capacity = 100 * GIB
    return ReportedVolume(
        path, path, capacity, 40 * GIB, 60 * GIB, 1, failed, 900_000, error, 50 * GIB, 49 * GIB
    )


def join(
    world: ScmWorld, name: str, *volumes: ReportedVolume, rack: str = "/r", host: str = ""
) -> None:
    """Let a node in that holds container 1 and reports it."""
    world.control.datanodes.register(
        Registration(name, f"{host or name}:1", rack, "1", "", 1, volumes)
    )
    report = NodeReplicaReport(True, 1, 0, is_last=True, replicas=(replica(name),))
    world.control.datanodes.heartbeat(Heartbeat(name, 1, volumes or (volume(),), (report,), (), ()))


def settle(world: ScmWorld, *nodes: str) -> None:
    """Let the first round of looks end."""
    for _ in range(400):
        world.clock.advance_s(1)
        for node in nodes:
            world.control.datanodes.heartbeat(Heartbeat(node, 1, (volume(),), (), (), ()))
        world.control.tick()
    world.control.note_history()


@pytest.fixture
def whole(world: ScmWorld) -> ScmWorld:
    """Three nodes with equal replicas of one container, looked at."""
    with world.state.change() as change:
        change.put(world.state.containers, container())
        change.next_id("next_container_id")
    for name in ("a", "b", "c"):
        join(world, name)
    settle(world, "a", "b", "c")
    return world


def test_cluster_page_of_a_whole_cluster_says_so(whole: ScmWorld) -> None:
    """The page has the time since when, and the verified share."""
    text = Elements(page(whole)).text

    assert "All 1 closed container is whole and equal on all replicas; 3 datanodes answer." in text
    assert re.search(r"Since 1970-01-01 00:\d\d UTC", text)
    assert "98.00 % of 150.0 GiB verified in time; the oldest" in text


@pytest.mark.parametrize("trouble", ["silent", "damaged", "restart", "no tick"])
def test_cluster_page_never_claims_wholeness_without_knowledge(
    whole: ScmWorld, trouble: str
) -> None:
    """The causes are silence, damage, safe mode after a start, and a process without ticks."""
    is_ticking = trouble != "no tick"
    match trouble:
        case "silent":
            whole.clock.advance_s(20)
        case "damaged":
            whole.beat("b", replica("b", ReplicaState.UNHEALTHY))
        case "restart":
            whole.restart()

    with CallThreadPool(2, 4) as calls:
        http = HttpStatus(whole.control, calls, WorkerLoops(), lambda: is_ticking)
        text = Elements(http.page({}).body.decode()).text

    assert "All 1" not in text.partition("The weeks before")[0]
    assert "Degraded" in text if trouble == "damaged" else "Unknown" in text


def test_hostile_names_are_shown_and_do_nothing(world: ScmWorld) -> None:
    """Ids, hosts, racks, paths, errors: no element and no attribute comes of them."""
    for i, name in enumerate(HOSTILE):
        rack, path = HOSTILE[(i + 1) % len(HOSTILE)], HOSTILE[(i + 2) % len(HOSTILE)]
        join(world, name, volume(path, failed=i % 2 == 0, error=path), rack=rack, host=path)
    world.beat(HOSTILE[0], replica(HOSTILE[0], ReplicaState.UNHEALTHY, load_error=HOSTILE[1]))
    world.control.note_verified({HOSTILE[0]: 1}, HOSTILE[1])
    pages = [
        page(world),
        *(page(world, node=name) for name in HOSTILE),
        *(page(world, rack=name) for name in HOSTILE),
    ]

    for text in pages:
        parsed = Elements(text)
        assert ALLOWED >= {tag for tag, _ in parsed.found}
        for _tag, attributes in parsed.found:
            assert not [name for name in attributes if name.startswith("on")]
            assert (attributes.get("href") or "/").startswith("/")
            assert "src" not in attributes
        assert "\u202e" not in text
    shown = Elements(pages[0]).text
    assert all(name in shown for name in HOSTILE if name.isprintable())


@pytest.mark.parametrize(
    ("service", "word"),
    [("", "good"), ("IN_SERVICE", "good"), ("READ_ONLY", "read-only"), ("RETIRING", "retiring")],
)
def test_a_volume_has_the_word_that_it_has_everywhere(
    world: ScmWorld, service: str, word: str
) -> None:
    """A volume that takes no new replicas is not full, because its free space is unknown."""
    join(world, "dn-1", replace(volume(), service=service, available_bytes=0))

    volumes = page(world).partition("<h2>Volumes</h2>")[2].partition("<h2>")[0]

    assert f">{word}<" in volumes
    assert ("100 %" in volumes) == (word == "good")


def test_links_lead_to_what_they_name(world: ScmWorld) -> None:
    """The links are right for every name of a rack or datanode."""
    for i, name in enumerate(HOSTILE):
        join(world, name, rack=HOSTILE[(i + 1) % len(HOSTILE)], host=f"h{i}")
    hrefs = {attributes.get("href") for _, attributes in Elements(page(world)).found}

    for name in HOSTILE:
        (node,) = (v.node for v in world.control.queries.nodes() if v.node.datanode_id == name)
        assert f"/?node={quote(name, safe='')}" in hrefs
        assert f"/?rack={quote(node.rack, safe='')}" in hrefs
        assert f"At {node.address}, version 1." in Elements(page(world, node=name)).text


def test_unknown_rack_or_datanode_gives_404(world: ScmWorld) -> None:
    """An unknown page parameter does, too."""
    join(world, "a", rack="/r")
    with CallThreadPool(2, 4) as calls:
        http = HttpStatus(world.control, calls, WorkerLoops(), lambda: True)
        asked = [{"node": "b"}, {"rack": "/s"}, {"rack": "/r", "page": "x"}, {"rack": ""}]
        found = [http.page(words).status for words in asked]

    assert [404] * 4 == found
    assert 200 == http.page({"rack": "/r", "page": "999999"}).status


def test_a_large_cluster_shows_what_most_needs_a_look(world: ScmWorld) -> None:
    """Silent, broken and leaving ones come first. The rest is a number, and one link away."""
    names = [f"dn{i:03d}" for i in range(300)]
    for i, name in enumerate(names):
        join(world, name, volume(failed=i == 44, error="gone"), rack=f"/rack-{i % 100}")
    with world.state.change() as change:
        node = world.state.nodes.get("dn077")
        assert node is not None
        change.put(world.state.nodes, replace(node, op_state=OpState.DECOMMISSIONING))
    world.clock.advance_s(20)
    for name in names:
        if name != "dn123":
            world.call(name)

    first = [view.node.datanode_id for view in worst_nodes(world.control.queries.nodes(), 2)]
    text = page(world)

    assert ["dn123", "dn077"] == first, "volumes are what the last call told"
    assert "Datanodes: the 40 of 300 that most need a look" in text
    assert "Racks: the 60 of 100 that most need a look" in text
    assert len(text) < 150_000
    assert 3 == page(world, rack="/rack-7").count('href="/?node=')
    assert "dn123" in Elements(page(world)).text.partition("Volumes")[0]
