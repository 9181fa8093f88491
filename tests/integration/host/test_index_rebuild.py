"""A lost index is rebuilt in the background, while the other replicas of the host are served."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Final

import pytest

from agent.config.loading import load
from agent.host.datanode_identity import DatanodeIdentity
from agent.host.host import AgentProcess
from agent.host.index_rebuild import TOLD_S, IndexRebuild
from agent.store import volume_set
from agent.store.index.facts import VolumeFacts
from agent.store.operations.replica_import import ImportSpec
from agent.store.recovery import startup_recovery
from agent.store.replica_store import ReplicaStore
from agent.store.volumes.volume import Volume
from merkle.replica import Bcsid, ContainerId, ReplicaState
from suture.errors import Code, UnavailableError, VolumeFailed
from suture.runtime.loop import Busy, NoMoreWork
from suture.runtime.sd_notify import SystemdNotifier
from suture.wire.clients.scm import ScmClient
from tests.support.clock import FakeClock
from tests.support.heard import logged
from tests.support.storage.stores import CLUSTER, DATANODE, closed_replica, options_of_test

BATCH: Final = 2
COUNT: Final = 10
WAIT_S: Final = 60.0


class LostIndex:
    """The store of a datanode with two volumes, one of which has lost its index."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changed: list[ContainerId] = []
        self.open()
        for number in range(1, COUNT + 1):
            closed_replica(self.store, number, block_ids=(1,))
        self.before = {facts.container_id: facts for facts in self.store.replicas()}
        self.lost_ids = [
            facts.container_id
            for facts in self.before.values()
            if facts.volume_id == self.facts(0).volume_id
        ]
        self.kept_ids = sorted(self.before.keys() - set(self.lost_ids))
        self.store.close()
        shutil.rmtree(path / "v0" / "hdds" / CLUSTER / "db")
        self.open()

    def open(self) -> None:
        """Open the store as the agent does."""
        self.store = ReplicaStore.open(
            [self.path / "v0", self.path / "v1"],
            cluster_id=CLUSTER,
            datanode_id=DATANODE,
            options=options_of_test(on_change=self.changed.append),
            rebuilds_later=True,
        )

    def facts(self, number: int) -> VolumeFacts:
        """Return the facts of a volume."""
        path = self.path / f"v{number}"
        return next(facts for facts in self.store.volumes() if facts.path == path)

    @property
    def volume(self) -> Volume:
        """Return the volume that lost its index."""
        return self.store.volume_set.by_id(self.facts(0).volume_id)

    def progress(self) -> tuple[int, int]:
        """Return the count of replicas to load, and of those that are left."""
        facts = self.facts(0)
        return facts.rebuild_count, facts.rebuild_left_count


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LostIndex]:
    """A host with a lost index, whose rebuild commits BATCH replicas at once."""
    for module in (startup_recovery, volume_set):
        monkeypatch.setattr(module, "ADOPTED_MAX", BATCH)
    made = LostIndex(tmp_path)
    assert len(made.lost_ids) > 2 * BATCH
    yield made
    made.store.close()


def rebuilder(host: LostIndex, calls: list[str] | None = None) -> IndexRebuild:
    """Return the worker; it records the calls of its callbacks."""
    told = [] if calls is None else calls
    return IndexRebuild(
        host.store,
        FakeClock(),
        fence=lambda volume_id, why: (
            told.append(why),
            host.store.volume_set.fail_volume(volume_id, why),
        ),
        on_rebuilt=lambda: told.append("rebuilt"),
    )


def test_other_volumes_are_served_during_the_rebuild(host: LostIndex) -> None:
    """Nothing is loaded before the start, and calls for the rest are refused for the moment."""
    assert host.kept_ids == host.store.replica_ids()
    assert (len(host.lost_ids), len(host.lost_ids)) == host.progress()
    assert (0, 0) == (host.facts(1).rebuild_count, host.facts(1).rebuild_left_count)
    for container_id in host.kept_ids:
        assert host.before[container_id] == host.store.replica(container_id)
    one = host.lost_ids[0]
    for call in (
        lambda: host.store.replica(one),
        lambda: host.store.view(one),
        lambda: host.store.delete_container(one, force=True),
        lambda: host.store.create_container(one),
        lambda: host.store.begin_arrival(
            ImportSpec(
                container_id=one,
                state=ReplicaState.CLOSED,
                former_state=None,
                replica_index=0,
                bcsid=Bcsid(1),
                origin_datanode_id=DATANODE,
                created_at_ms=1,
                data_bytes=0,
            )
        ),
    ):
        with pytest.raises(UnavailableError, match="is being rebuilt") as refused:
            call()
        assert Code.BUSY is refused.value.code


def test_rebuild_continues_after_a_crash(host: LostIndex) -> None:
    """Replicas that a batch recorded are served at the next start, the others wait."""
    first = host.store.volume_set.load_next(host.volume)
    assert tuple(host.lost_ids[:BATCH]) == first
    assert (len(host.lost_ids), len(host.lost_ids) - BATCH) == host.progress()
    host.store.close()

    host.open()

    left_count = len(host.lost_ids) - BATCH
    assert (left_count, left_count) == host.progress()
    assert sorted([*host.kept_ids, *first]) == host.store.replica_ids()


def test_worker_serves_each_replica_with_its_bytes(host: LostIndex) -> None:
    """Each replica is reported when it is loaded, as UNHEALTHY, with the facts of its descriptor.
    The full report follows at the end."""
    calls: list[str] = []
    files = {
        path.name: path.read_bytes()
        for path in (host.path / "v0").rglob("*")
        if path.suffix in {".block", ".tree"}
    }
    worker = rebuilder(host, calls)

    steps = [worker.step() for _ in range(0, len(host.lost_ids), BATCH)]
    assert [Busy()] * len(steps) == steps
    assert NoMoreWork() == worker.step()

    assert ["rebuilt"] == calls
    assert host.lost_ids == host.changed[-len(host.lost_ids) :]
    assert (0, 0) == host.progress()
    assert sorted(host.before) == host.store.replica_ids()
    for container_id in host.lost_ids:
        facts, before = host.store.replica(container_id), host.before[container_id]
        assert ReplicaState.UNHEALTHY is facts.state
        assert before.origin_datanode_id == facts.origin_datanode_id
        assert 1 == facts.finding_count
    assert files == {
        path.name: path.read_bytes()
        for path in (host.path / "v0").rglob("*")
        if path.suffix in {".block", ".tree"}
    }


def test_progress_is_logged_at_intervals(host: LostIndex) -> None:
    """The first event names the total, later ones come every TOLD_S seconds, the last is the
    end."""
    worker = rebuilder(host)
    clock = worker.clock
    assert isinstance(clock, FakeClock)
    total = len(host.lost_ids)

    with logged() as lines:
        worker.step()
        worker.step()
        clock.advance_s(TOLD_S)
        while worker.step() == Busy():
            pass

    told = [line for line in lines if line["event"].startswith("index_")]
    progressed, rebuilt = "index_rebuild_progressed", "index_rebuilt"
    assert [progressed, progressed, rebuilt] == [line["event"] for line in told]
    assert [(0, total), (2 * BATCH, total)] == [
        (line["count"], line["total"]) for line in told[:-1]
    ]


def test_second_replica_is_kept_until_the_index_is_rebuilt(host: LostIndex) -> None:
    """A container of the other volume also has a directory on the rebuilt one. The served replica
    is not deleted, because the next start would serve the second one."""
    twice = host.kept_ids[0]
    source = host.store.paths(twice).root
    target = host.volume.paths(twice).root
    host.store.close()
    shutil.copytree(source, target)
    host.open()
    served = host.store.replica(twice)

    with pytest.raises(UnavailableError, match="is on both"):
        host.store.delete_container(twice, force=True)
    with pytest.raises(UnavailableError, match="is being rebuilt"):
        host.store.services.drop_moved(host.volume.volume_id, twice)

    while host.store.volume_set.load_next(host.volume):
        pass
    assert served == host.store.replica(twice)
    assert [twice] == [one.container_id for one in host.store.unloadable()]


def test_volume_that_fails_during_the_rebuild_is_fenced(
    host: LostIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loaded and its waiting replicas are lost, and the rebuild ends. A host that is short of
    descriptors tries again."""
    calls: list[str] = []
    worker = rebuilder(host, calls)
    worker.step()

    def failing(number: int) -> None:
        def fail(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(volume_set, "load_directories", fail)

    failing(errno.EMFILE)
    with pytest.raises(UnavailableError, match="EMFILE"):
        worker.step()
    assert [] == calls
    failing(errno.EIO)
    worker.step()

    assert NoMoreWork() == worker.step()
    assert "EIO" in calls[0]
    assert ["rebuilt"] == calls[1:]
    assert host.kept_ids == host.store.replica_ids()
    for container_id in host.lost_ids:
        with pytest.raises(VolumeFailed):
            host.store.replica(container_id)
        assert host.store.volume_set.is_lost(container_id)


def test_fence_during_a_batch_serves_nothing_of_it(
    host: LostIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The volume check fences the volume while the rebuild commits."""
    volume, adopt = host.volume, startup_recovery.load_directories

    def fenced(*arguments: object) -> None:
        adopt(*arguments)  # type: ignore[arg-type]
        host.store.volume_set.fail_volume(volume.volume_id, "no answer")

    monkeypatch.setattr(volume_set, "load_directories", fenced)

    assert () == host.store.volume_set.load_next(volume)

    assert host.kept_ids == host.store.replica_ids()
    assert () == host.store.volume_set.load_next(volume)
    with pytest.raises(VolumeFailed):
        host.store.replica(host.lost_ids[0])


def test_few_lost_rows_are_loaded_at_the_start(host: LostIndex) -> None:
    """One commit is not worth a state of its own."""
    while len(host.store.volume_set.backlogs[host.volume].left) > BATCH:
        host.store.volume_set.load_next(host.volume)
    host.store.close()

    host.open()

    assert {} == host.store.volume_set.backlogs
    assert sorted(host.before) == host.store.replica_ids()


def test_agent_stops_between_two_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop does not wait for the end of the rebuild, and closes the volume cleanly."""
    for module in (startup_recovery, volume_set):
        monkeypatch.setattr(module, "ADOPTED_MAX", 1)
    host = agent(tmp_path)
    for number in range(1, COUNT + 1):
        host.store.create_container(ContainerId(number))
    assert [] == host.stop()
    shutil.rmtree(tmp_path / "volume" / "hdds" / CLUSTER / "db")
    host, adopt = agent(tmp_path), startup_recovery.load_directories
    stop_loops = host.loops.stop
    has_begun, is_stopping = Event(), Event()

    def held(*arguments: object) -> None:
        has_begun.set()
        assert is_stopping.wait(WAIT_S)
        adopt(*arguments)  # type: ignore[arg-type]

    def stop(deadline_s: float) -> tuple[str, ...]:
        for loop in host.loops._loops:
            loop.request_stop()
        is_stopping.set()
        return stop_loops(deadline_s)

    monkeypatch.setattr(volume_set, "load_directories", held)
    monkeypatch.setattr(host.loops, "stop", stop)
    host.start()
    assert has_begun.wait(WAIT_S)

    assert [] == host.stop()

    host = agent(tmp_path)
    [facts] = host.store.volumes()
    assert (COUNT - 1, COUNT - 1) == (facts.rebuild_count, facts.rebuild_left_count)
    assert [1] == host.store.replica_ids()
    assert [] == host.stop()


def agent(path: Path) -> AgentProcess:
    """Return an agent with one volume, which is not started, and no SCM."""
    config = path / "agent.toml"
    volume = path / "volume"
    volume.mkdir(exist_ok=True)
    config.write_text(
        f'[node]\nlisten = "127.0.0.1:0"\nscm = "127.0.0.1:1"\n[observe]\nlisten = ""\n'
        f'[storage]\nvolumes = ["{volume}"]\nreserve_bytes = 0\n'
    )
    who = DatanodeIdentity(DATANODE, CLUSTER, version="1", boot_id=1)
    return AgentProcess(load(config), who, [ScmClient("127.0.0.1:1")], SystemdNotifier())
