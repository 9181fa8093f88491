"""What is written down of the cluster: since when it is how it is, across restarts."""

from pathlib import Path

import pytest

from health.cluster_verdict import DataVerdict
from merkle.replica import ReplicaState
from scm.api.cluster_status import status_history
from scm.state.entities import CommandKind, CommandOutcome, ForgottenContainer, OutcomeState
from scm.state.history.interval_samples import LEVELS
from tests.support.control.scm_world import ScmWorld, container, replica, with_whole_replicas

NODES = ("a", "b", "c")


@pytest.fixture
def world(tmp_path: Path) -> ScmWorld:
    """Return a cluster of three nodes, each with a whole replica of container 1."""
    made = with_whole_replicas(tmp_path / "scm", *NODES)
    for node in NODES:
        made.beat(node, replica(node), full=True)
    return made


def wait(world: ScmWorld, seconds: int, *, silent: str = "") -> None:
    """Let time pass, a tick and a look every ten seconds."""
    for _ in range(0, seconds, 10):
        world.clock.advance_s(10)
        for node in NODES:
            if node != silent:
                world.call(node)
        world.control.tick()
        world.control.note_history()


def turns(world: ScmWorld) -> list[DataVerdict]:
    """Return what was said, one after the other."""
    return [turn.verdict for turn in world.control.queries.survey().past.turns]


def test_verdict_history_records_since_when_all_is_whole(world: ScmWorld) -> None:
    """The verdict is unknown after a start, then whole until something is wrong."""
    wait(world, 600)
    whole_at_ms = world.control.queries.survey().past.since_ms(DataVerdict.WHOLE, 0)
    wait(world, 300)
    assert whole_at_ms == world.control.queries.survey().past.since_ms(DataVerdict.WHOLE, 0)
    assert 0 < whole_at_ms < world.clock.now_ms() - 300_000
    assert DataVerdict.WHOLE is world.control.queries.figures().verdict

    world.beat("b", replica("b", ReplicaState.UNHEALTHY))
    damaged_at_ms = world.clock.now_ms()
    wait(world, 60)

    past = world.control.queries.survey().past
    assert [DataVerdict.UNKNOWN, DataVerdict.WHOLE, DataVerdict.DEGRADED] == turns(world)
    assert damaged_at_ms <= past.since_ms(DataVerdict.DEGRADED, 0) <= damaged_at_ms + 60_000
    assert past.since_ms(DataVerdict.WHOLE, 5) == 5, "it is only now that it is said"
    world.state.close()


def test_a_restart_is_remembered_as_a_time_nobody_watched(world: ScmWorld) -> None:
    """Earlier samples are kept. The cluster is whole again only when all datanodes have
    reported.
    """
    wait(world, 600)
    before = world.control.queries.survey().past
    world.clock.advance_s(7_200)
    world.restart()

    world.control.note_history()

    assert DataVerdict.UNKNOWN is world.control.queries.figures().verdict
    past = world.control.queries.survey().past
    assert list(before.turns) == list(past.turns)[:-1]
    assert "nobody watched since" in past.turns[-1].text
    assert before.samples[2]
    assert before.samples[1][0] == past.samples[1][0]
    assert DataVerdict.UNKNOWN is turns(world)[-1]
    world.state.close()


def test_a_node_that_falls_silent_ends_what_was_known(world: ScmWorld) -> None:
    """The page may not go on to say that all is whole."""
    wait(world, 600)

    wait(world, 60, silent="c")

    assert DataVerdict.WHOLE is not turns(world)[-1]
    assert 1 == world.control.queries.survey().past.samples[2][-1].silent_count
    world.state.close()


def test_days_of_samples_stay_few(world: ScmWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest goes for the newest; of turns, too."""
    monkeypatch.setattr(status_history, "TURNS_MAX", 3)
    kept = [type(level)(level.length_ms, 4) for level in LEVELS]
    monkeypatch.setattr(status_history, "LEVELS", kept)
    for i in range(40):
        world.beat("b", replica("b", (ReplicaState.CLOSED, ReplicaState.UNHEALTHY)[i % 2]))
        world.clock.advance_s(400)
        world.control.note_history()

    past = world.control.queries.survey().past
    assert 3 == len(past.turns)
    assert [4, 4, 1] == [len(samples) for samples in past.samples]
    begins = [sample.at_ms for sample in past.samples[0]]
    assert sorted(begins) == begins
    assert begins[-1] > world.clock.now_ms() - 400_000
    world.state.close()


def test_executed_work_is_counted_once(world: ScmWorld) -> None:
    """A repeated answer, or one to an unknown command, is not counted."""
    world.control.safe_mode.leave()
    wait(world, 30)
    world.beat("c", replica("c", root=9))
    world.control.admin.reconcile([1])
    (command,) = world.call("c").commands
    outcome = CommandOutcome(
        command[0].command_id, "c", 0, OutcomeState.EXECUTED, CommandKind.RECONCILE, 1, "", "", b""
    )

    world.call("c", outcomes=(outcome, outcome))
    world.call("c", outcomes=(outcome,))
    world.call("a", outcomes=(outcome,))
    wait(world, 60)

    (work,) = (w for w in world.control.queries.survey().works if w.kind is CommandKind.RECONCILE)
    assert 1 == work.rate.done_count
    assert 1 == sum(sample.done_count for sample in world.control.queries.survey().past.samples[0])
    world.state.close()


def test_the_last_verification_is_known_after_a_restart(world: ScmWorld) -> None:
    """The reason for a failure is also known after a restart."""
    world.control.note_verified({"OK": 2}, "")
    world.clock.advance_s(60)
    world.control.note_verified({}, "suture-verify ended with 1")
    world.restart()

    assert "suture-verify ended with 1" == world.control.queries.report().verified.error
    assert ["", "suture-verify ended with 1"] == [
        one.error for one in world.control.queries.survey().past.verifications
    ]
    world.state.close()


def test_containers_changed_since_their_last_look_are_counted(world: ScmWorld) -> None:
    """A forgotten container that was looked at before does not offset one that was not."""
    with world.state.change() as change:
        for number in (2, 3):
            change.put(world.state.containers, container(container_id=number))
        world.state.counters["next_container_id"] = 4
    wait(world, 700)
    manager = world.control.manager
    assert 0 == manager.unlooked_count()

    with world.state.change() as change:
        given_up = world.state.containers.get(3)
        assert given_up is not None
        change.remove(world.state.containers, 3)
        change.put(world.state.forgotten, ForgottenContainer(given_up, 1, 0))
    wait(world, 700)
    world.state.mark_dirty([1])

    assert 1 == manager.unlooked_count()
    world.state.close()
