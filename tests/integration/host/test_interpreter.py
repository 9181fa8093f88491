"""Full collections pass over what is there to stay, however much of it gathers."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from agent import main as agent_main
from agent.config.loading import load
from agent.host.datanode_identity import DatanodeIdentity
from agent.host.host import AgentProcess
from scm import main as scm_main
from scm.state.options import ScmOptions
from suture.runtime.gil_tuning import OBJECTS_MAX, freeze_what_stays
from suture.runtime.sd_notify import SystemdNotifier
from suture.runtime.stop_request import StopRequest
from suture.wire.clients.scm import ScmClient

NOWHERE = "127.0.0.1:1"  # nobody listens there


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Nothing is frozen, before and after."""
    before = list(gc.callbacks)
    gc.callbacks.clear()
    gc.unfreeze()
    yield
    gc.callbacks[:] = before
    gc.unfreeze()


def rows(count: int) -> list[list[int]]:
    """Return so many objects that the collector has to look at."""
    return [[number] for number in range(count)]


def seen_by_full_collection() -> int:
    """Return how many objects a full collection goes through and leaves."""
    return len(gc.get_objects(generation=2))


def test_full_collection_passes_over_long_lived_objects() -> None:
    """A full collection takes a tenth of a second per few hundred thousand objects, and nothing
    else runs meanwhile.
    """
    freeze_what_stays()
    freeze_what_stays()
    kept = []

    for _ in range(3):
        kept.append(rows(OBJECTS_MAX + 1))
        gc.collect()
        assert seen_by_full_collection() < OBJECTS_MAX

    assert 1 == len(gc.callbacks)
    assert gc.get_freeze_count() > 3 * OBJECTS_MAX


def test_a_little_is_left_to_the_collector() -> None:
    """Objects that become cyclic garbage later can be collected, unlike frozen ones."""
    freeze_what_stays()
    frozen = gc.get_freeze_count()
    circle: list[object] = list(rows(OBJECTS_MAX // 2))
    circle.append(circle)
    gc.collect()

    del circle

    assert gc.collect() > OBJECTS_MAX // 2
    assert abs(gc.get_freeze_count() - frozen) < OBJECTS_MAX // 2


def test_objects_are_frozen_only_after_a_full_collection() -> None:
    """A collection of young objects examines none of the old ones, which may be garbage."""
    freeze_what_stays()
    frozen = gc.get_freeze_count()
    circle: list[object] = list(rows(OBJECTS_MAX + 1))
    circle.append(circle)

    gc.collect(1)

    assert gc.get_freeze_count() <= frozen  # some frozen objects may be freed meanwhile
    del circle
    assert gc.collect() > OBJECTS_MAX


def serve_agent(folder: Path) -> None:
    """Have an agent serve until it was told to stop."""
    config = folder / "agent.toml"
    (folder / "volume").mkdir()
    config.write_text(
        f'[node]\nlisten = "127.0.0.1:0"\nscm = "{NOWHERE}"\n'
        f'[observe]\nlisten = ""\n[storage]\nvolumes = ["{folder / "volume"}"]\n'
    )
    who, supervisor = (
        DatanodeIdentity(str(uuid4()), "CID-1", version="1", boot_id=1),
        SystemdNotifier(),
    )
    host = AgentProcess(load(config), who, [ScmClient(NOWHERE)], supervisor)
    agent_main.serve(host, supervisor, stopped(), who, config)


def serve_scm(folder: Path) -> None:
    """Have a control plane serve until it was told to stop."""
    scm_main.serve(folder, "127.0.0.1:0", ScmOptions(), stopped())


def stopped() -> StopRequest:
    """Return what tells a process to stop as soon as it serves."""
    stop = StopRequest()
    stop.set()
    return stop


@pytest.mark.parametrize("serve", [serve_agent, serve_scm])
def test_a_process_that_serves_froze_what_it_read(
    tmp_path: Path, serve: Callable[[Path], None]
) -> None:
    """
    The modules alone are some fifty thousand objects.
    """
    serve(tmp_path)

    assert gc.get_freeze_count() > OBJECTS_MAX // 2
    assert 1 == len(gc.callbacks)
