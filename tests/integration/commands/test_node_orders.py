"""Orders about the datanode itself, given to a real agent by a scripted SCM."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from agent.store.files.layout import VolumeLayout
from agent.store.replica_store import ReplicaStore
from agent.store.volumes.op_state_file import NodeState, newest_state, state_path, write_state
from agent.store.volumes.sealed_file import sealed
from suture.wire.v1 import scm_pb2
from tests.support.control.scripted_scm import ScriptedScm
from tests.support.faults.small_disk import small_disk
from tests.support.faults.victim import Victim, write_config
from tests.support.storage.stores import closed_replica, options_of_test


@pytest.fixture
def scm() -> Iterator[ScriptedScm]:
    """An SCM that hands out what it is told to."""
    with ScriptedScm() as scripted:
        yield scripted


def state_order(number: int, op_state: str) -> scm_pb2.Command:
    """Return the order to take an operational state."""
    command = scm_pb2.SetOperationalStateCommand(op_state=op_state, op_expiry_ms=77)
    return scm_pb2.Command(command_id=number, term=1, set_operational_state=command)


def test_the_operational_state_survives_a_restart(tmp_path: Path, scm: ScriptedScm) -> None:
    """The state set by the SCM is stored on the volumes, and sent in heartbeats and at the next
    registration.
    """
    config = write_config(tmp_path / "agent.toml", tmp_path / "volume", scm.address)
    with Victim(tmp_path / "agent.log") as victim:
        victim.start(config)
        scm.order(state_order(1, "DECOMMISSIONING"))
        done = scm.wait_for(1)
        assert done is not None
        assert scm_pb2.CommandStatus.EXECUTED == done.state
        assert scm.wait_until(lambda: scm.op_states[-1] == ("DECOMMISSIONING", 77))
        victim.stop()

        victim.start(config)

        assert scm.wait_until(lambda: len(scm.registrations) == 2)
        assert ["", "DECOMMISSIONING"] == [item.op_state for item in scm.registrations]
        victim.stop()


def test_a_state_that_nobody_knows_is_refused(tmp_path: Path, scm: ScriptedScm) -> None:
    """A state of a later version is rejected as a whole."""
    config = write_config(tmp_path / "agent.toml", tmp_path / "volume", scm.address)
    with Victim(tmp_path / "agent.log") as victim:
        victim.start(config)

        scm.order(state_order(1, "ASLEEP"))

        answer = scm.wait_for(1)
        assert answer is not None
        assert (scm_pb2.CommandStatus.FAILED, "MALFORMED_REQUEST") == (answer.state, answer.code)
        victim.stop()


def test_reregister_and_refresh(tmp_path: Path, scm: ScriptedScm) -> None:
    """
    On order the datanode registers again; a refresh is answered with fresh volumes.
    """
    config = write_config(tmp_path / "agent.toml", tmp_path / "volume", scm.address)
    with Victim(tmp_path / "agent.log") as victim:
        victim.start(config)
        scm.order(
            scm_pb2.Command(
                command_id=1, term=1, refresh_volume_usage=scm_pb2.RefreshVolumeUsageCommand()
            )
        )
        assert scm.wait_for(1) is not None
        scm.order(scm_pb2.Command(command_id=2, term=1, reregister=scm_pb2.ReregisterCommand()))

        assert scm.wait_for(2) is not None
        assert scm.wait_until(lambda: len(scm.registrations) == 2)
        victim.stop()


def test_agent_follows_the_first_of_two_scms_with_the_same_term(
    tmp_path: Path, scm: ScriptedScm
) -> None:
    """Both SCMs receive both start ids, also after a restart of the agent, and the orders of the
    second one are ignored.
    """
    scm.start_id, scm.state_number = "first", 7
    with ScriptedScm() as second, Victim(tmp_path / "agent.log") as victim:
        second.start_id, second.state_number = "second", 8
        config = write_config(tmp_path / "agent.toml", tmp_path / "volume", scm.address)
        victim.start(config)
        assert scm.wait_until(lambda: [s.start_id for s in scm.seen_starts] == ["first"], 10)
        victim.stop()
        text = config.read_text().replace(
            f'"{scm.address}"', f'["{scm.address}", "{second.address}"]'
        )
        config.write_text(text)

        victim.start(config)

        for one in (scm, second):
            assert one.wait_until(lambda one=one: len(one.seen_starts) == 2, 10)  # type: ignore[misc]
            assert [("first", 1, 7), ("second", 1, 8)] == [
                (seen.start_id, seen.term, seen.state_number) for seen in one.seen_starts
            ]
        assert [("first", 7)] == [
            (seen.start_id, seen.state_number) for seen in scm.registrations[-1].seen_starts
        ]
        second.order(state_order(1, "DECOMMISSIONED"))
        scm.order(state_order(2, "IN_SERVICE"))
        assert scm.wait_for(2) is not None
        count = second.heartbeats
        assert second.wait_until(lambda: second.heartbeats > count + 2)
        assert {2} == set(second.statuses)
        assert ("IN_SERVICE", 77) == second.op_states[-1]
        victim.stop()


def test_the_scm_with_the_highest_term_leads(tmp_path: Path, scm: ScriptedScm) -> None:
    """An agent reports to all SCMs. Orders of a former leader are stale."""
    with ScriptedScm() as former, Victim(tmp_path / "agent.log") as victim:
        scm.term = 2
        config = write_config(tmp_path / "agent.toml", tmp_path / "volume", scm.address)
        text = config.read_text().replace(
            f'"{scm.address}"', f'["{former.address}", "{scm.address}"]'
        )
        config.write_text(text)
        victim.start(config)
        assert scm.wait_until(lambda: scm.heartbeats > 1)
        leading = state_order(1, "IN_SERVICE")
        leading.term = 2
        scm.order(leading)
        assert scm.wait_for(1) is not None

        former.order(state_order(2, "DECOMMISSIONED"))  # of term 1

        answer = former.wait_for(2)
        assert answer is not None
        assert (scm_pb2.CommandStatus.SKIPPED, "STALE_TERM") == (answer.state, answer.code)
        assert ("IN_SERVICE", 77) == scm.op_states[-1]
        victim.stop()


def test_a_delete_on_a_full_disk_fails_with_its_reason(tmp_path: Path, scm: ScriptedScm) -> None:
    """The disk is full and the room reserved for deletes is gone. The delete succeeds once there
    is room.
    """
    with small_disk(tmp_path / "disk") as disk, Victim(tmp_path / "agent.log") as victim:
        volume = disk.path / "volume"
        stored = ReplicaStore.open(
            [volume],
            cluster_id=scm.cluster_id,
            datanode_id="dn-1",
            options=options_of_test(),
        )
        closed_replica(stored, 1)
        stored.close()
        victim.start(write_config(tmp_path / "agent.toml", volume, scm.address))
        assert scm.wait_until(lambda: bool(scm.replicas))
        for path in volume.glob("hdds/*/ballast/*"):
            path.unlink()
        disk.fill()
        delete = scm_pb2.DeleteBlocksCommand(
            transactions=[
                scm_pb2.DeleteTransaction(transaction_id=7, container_id=1, local_ids=[1])
            ]
        )

        scm.order(scm_pb2.Command(command_id=1, term=1, delete_blocks=delete))
        refused = scm.wait_for(1)
        disk.free()
        scm.order(scm_pb2.Command(command_id=2, term=1, delete_blocks=delete))
        done = scm.wait_for(2)
        victim.stop()

    assert refused is not None
    assert done is not None
    assert (scm_pb2.CommandStatus.FAILED, "DISK_OUT_OF_SPACE") == (refused.state, refused.code)
    assert "1 of 1 transactions failed; 7 of container 1" in refused.message
    [failed] = refused.delete_blocks.transactions
    assert (7, 1, False, "DISK_OUT_OF_SPACE") == (
        failed.transaction_id,
        failed.container_id,
        failed.done,
        failed.code,
    )
    assert scm_pb2.CommandStatus.EXECUTED == done.state
    assert [True] == [result.done for result in done.delete_blocks.transactions]


class TestNodeState:
    def test_the_newest_of_several_volumes_counts(self, tmp_path: Path) -> None:
        """
        A volume that missed a decision, or whose file is damaged, does not decide.
        """
        layouts = [VolumeLayout(tmp_path / name, "c") for name in "abc"]
        for layout in layouts:
            layout.cluster.mkdir(parents=True)
        write_state(layouts, NodeState("DECOMMISSIONING", 0, 1))
        write_state(layouts[:2], NodeState("IN_SERVICE", 5, 2))
        state_path(layouts[1]).write_bytes(sealed(asdict(NodeState("DECOMMISSIONED", 0, 9)))[:-2])

        assert NodeState("IN_SERVICE", 5, 2) == newest_state(layouts)

    def test_node_state_without_a_file_is_empty(self, tmp_path: Path) -> None:
        """Without a file, the datanode is neither in service nor out of service."""
        state = newest_state([VolumeLayout(tmp_path, "c")])

        assert ("", False) == (state.op_state, state.is_out_of_service)
