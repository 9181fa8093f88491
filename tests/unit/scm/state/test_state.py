"""The state: durable, atomic, owned by one."""

import os
from dataclasses import replace
from pathlib import Path

import lmdb
import pytest

from merkle.replica import ReplicaState
from scm.state import records
from scm.state.database import StateDatabase
from scm.state.entities import Allocation, CommandKind, CommandOutcome, Node, OpState, OutcomeState
from suture.errors import Code, RefusedError, UnavailableError
from tests.support.control.scm_world import MAP_BYTES, container, key, pending, replica


def open_state(path: Path, map_bytes: int = MAP_BYTES) -> StateDatabase:
    """Open the state of a test."""
    return StateDatabase.open(path, map_bytes=map_bytes)


NODE = Node("dn1", "dn1:1", "/r", "0.1", 9, OpState.IN_SERVICE, 0, 1, 2)


class TestDurability:
    def test_everything_put_is_there_after_reopening(self, tmp_path: Path) -> None:
        """Every table comes back as it was, whatever its values hold."""
        outcome = CommandOutcome(
            3, "dn1", 4, OutcomeState.FAILED, "close", 1, "BUSY", "ä\n", b"\x00\xff"
        )
        name = key("ключ/" + "x" * 1_000, [], [])
        state = open_state(tmp_path)
        with state.change() as change:
            change.put(state.nodes, NODE)
            change.put(state.containers, container(pipeline=("dn2",)))
            change.put(state.replicas, replica("dn1", ReplicaState.UNHEALTHY, root=2**64 - 1))
            change.put(state.replicas, replica("dn2", root=None))
            change.put(state.allocations, Allocation(1, 2, 3, 4, "client"))
            change.put(state.keys, name)
            change.put(state.commands, pending(8, CommandKind.DELETE))
            change.put(state.outcomes, outcome)
        state.close()

        again = open_state(tmp_path)

        assert NODE == again.nodes.get("dn1")
        assert container(pipeline=("dn2",)) == again.containers.get(1)
        assert (
            replica("dn1", ReplicaState.UNHEALTHY, root=2**64 - 1),
            replica("dn2", root=None),
        ) == again.replicas.of(1)
        assert [Allocation(1, 2, 3, 4, "client")] == again.allocations.of(1)
        assert name == again.keys.get(name.name)
        assert [pending(8, CommandKind.DELETE)] == again.commands.of_node("dn1")
        assert outcome == again.outcome(3)
        again.close()

    def test_the_directories_it_is_in_are_durable_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A power cut takes no state with the directory that was made for it, by whomever."""
        synced: list[str] = []
        real = os.fsync

        def sync(fd: int) -> None:
            synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
            real(fd)

        monkeypatch.setattr(os, "fsync", sync)
        data = tmp_path / "var" / "scm"

        open_state(data).close()
        first = set(synced)
        synced.clear()
        open_state(data).close()

        assert {str(p) for p in (data / "state", data, data.parent, tmp_path)} <= first
        assert str(data.parent) in synced, "who made it may have been killed before"

    def test_removed_values_stay_removed(self, tmp_path: Path) -> None:
        """A removal is as durable as a change."""
        state = open_state(tmp_path)
        with state.change() as change:
            change.put(state.nodes, NODE)
        with state.change() as change:
            change.remove(state.nodes, "dn1")
        state.close()

        again = open_state(tmp_path)

        assert again.nodes.get("dn1") is None
        again.close()

    def test_a_number_is_never_given_twice(self, tmp_path: Path) -> None:
        """Ids go on after a restart where they were."""
        state = open_state(tmp_path)
        with state.change() as change:
            first = [change.next_id("next_container_id") for _ in range(3)]
        state.close()

        again = open_state(tmp_path)
        with again.change() as change:
            fourth = change.next_id("next_container_id")

        assert [1, 2, 3] == first
        assert fourth == 4
        again.close()

    def test_term_grows_and_cluster_id_stays(self, tmp_path: Path) -> None:
        """Each start is a new term of the same cluster."""
        first = open_state(tmp_path)
        first_seen = (first.term, first.cluster_id)
        first.close()

        second = open_state(tmp_path)

        assert (1, second.cluster_id) == first_seen
        assert second.term == 2
        assert second.cluster_id.startswith("CID-")
        second.close()

    def test_touched_values_are_not_written(self, tmp_path: Path) -> None:
        """A touch costs no disk write, so a restart shows the value before it."""
        state = open_state(tmp_path)
        with state.change() as change:
            change.put(state.commands, pending(1))
        with state.change() as change:
            change.set_volatile(state.commands, pending(1, sent_at_s=5.0))
        assert [pending(1, sent_at_s=5.0)] == state.commands.of_node("dn1")
        state.close()

        again = open_state(tmp_path)

        assert [pending(1)] == again.commands.of_node("dn1")
        again.close()

    def test_a_commit_waits_for_the_medium(self, tmp_path: Path) -> None:
        """A killed process cannot show it, a power cut would: LMDB must not run without sync."""
        state = open_state(tmp_path)
        flags = state._environment._environment.flags()
        state.close()

        assert (True, True, False) == (flags["sync"], flags["metasync"], flags["map_async"])


class TestAtomicity:
    def test_an_error_inside_a_change_undoes_all_of_it(self, tmp_path: Path) -> None:
        """Nothing of a failed change is left, in memory or on disk."""
        state = open_state(tmp_path)
        with state.change() as change:
            change.put(state.nodes, NODE)

        with pytest.raises(RefusedError), state.change() as change:  # noqa: PT012
            change.remove(state.nodes, "dn1")
            change.put(state.containers, container())
            change.next_id("next_container_id")
            raise RefusedError(Code.KEY_EXISTS, "no")

        assert NODE == state.nodes.get("dn1")
        assert state.containers.get(1) is None
        assert state.counters["next_container_id"] == 1
        state.close()
        again = open_state(tmp_path)
        assert NODE == again.nodes.get("dn1")
        assert len(again.containers) == 0
        again.close()

    def test_a_change_that_cannot_be_written_is_undone(self, tmp_path: Path) -> None:
        """If the write fails, the memory has the old state."""
        state = open_state(tmp_path, map_bytes=256 * 1024)
        blob = CommandOutcome(1, "dn1", 1, OutcomeState.EXECUTED, "", 1, "", "", b"x" * 1024**2)

        with pytest.raises(UnavailableError) as caught, state.change() as change:  # noqa: PT012
            change.put(state.nodes, NODE)
            change.put(state.outcomes, blob)

        assert caught.value.code is Code.DISK_OUT_OF_SPACE
        assert "lmdb_map_bytes" in caught.value.hint
        assert state.nodes.get("dn1") is None
        assert len(state.outcomes) == 0
        with state.change() as change:
            change.put(state.nodes, NODE)  # and it goes on working
        assert "cannot write the state: its database is full" in state.writability.trouble
        state.close()

    def test_a_row_that_can_never_be_kept_is_no_trouble_of_the_disk(self, tmp_path: Path) -> None:
        """A name that is too long for a key, from one caller, must not report a healthy disk as
        unwritable.
        """
        state = open_state(tmp_path)
        name = "\U0001f600" * 128

        with pytest.raises(RefusedError) as caught, state.change() as change:  # noqa: PT012
            change.put(state.nodes, NODE)
            change.put(state.nodes, replace(NODE, datanode_id=name))

        assert "a key of 512 bytes in table nodes" in str(caught.value)
        assert Code.MALFORMED_REQUEST is caught.value.code
        assert "" == state.writability.trouble
        assert 0 == len(state.nodes)
        state.close()

    def test_commit_callback_runs_only_after_the_commit(self, tmp_path: Path) -> None:
        """A log of a change that is not durable may be false."""
        state = open_state(tmp_path, map_bytes=256 * 1024)
        blob = CommandOutcome(1, "dn1", 1, OutcomeState.EXECUTED, "", 1, "", "", b"x" * 1024**2)
        told: list[str] = []

        with pytest.raises(UnavailableError), state.change() as change:  # noqa: PT012
            change.put(state.outcomes, blob)
            change.on_commit(lambda: told.append("too large"))
        with state.change() as change:
            change.put(state.nodes, NODE)
            change.on_commit(lambda: told.append("durable"))
            assert [] == told

        assert ["durable"] == told
        state.close()


class TestStrangers:
    @pytest.mark.parametrize("harm", ["writable", "state is a link", "lock is a link"])
    def test_a_directory_that_others_may_change_is_refused(self, tmp_path: Path, harm: str) -> None:
        """No other user may choose what this process reads as its state, or where it writes."""
        directory = tmp_path / "scm"
        open_state(directory).close()
        match harm:
            case "writable":
                directory.chmod(0o777)
            case "state is a link":
                (directory / "state").rename(tmp_path / "elsewhere")
                (directory / "state").symlink_to(tmp_path / "elsewhere")
            case "lock is a link":
                (directory / "LOCK").unlink()
                (directory / "LOCK").symlink_to(tmp_path / "made")

        with pytest.raises(RefusedError) as caught:
            open_state(directory)

        assert Code.INCONSISTENT_VOLUME == caught.value.code
        assert str(directory) in str(caught.value)
        assert not (tmp_path / "made").exists()


class TestOwnership:
    def test_a_second_owner_is_refused_and_told_who_has_it(self, tmp_path: Path) -> None:
        """Two control planes on one state would both give out the same ids."""
        state = open_state(tmp_path)

        with pytest.raises(RefusedError) as caught:
            open_state(tmp_path)

        assert caught.value.code is Code.VOLUME_IN_USE
        assert "pid " in str(caught.value)
        state.close()
        open_state(tmp_path).close()


class TestDamage:
    def test_a_damaged_row_is_named_and_nothing_starts(self, tmp_path: Path) -> None:
        """A flipped bit in a row is found at the start, before it is acted on."""
        state = open_state(tmp_path)
        with state.change() as change:
            change.put(state.nodes, NODE)
        state.close()
        self.overwrite(tmp_path, b"nodes", b"dn1", records.NODE.row(NODE)[:-2] + b"7]")

        with pytest.raises(RefusedError) as caught:
            open_state(tmp_path)

        assert caught.value.code is Code.INCONSISTENT_VOLUME
        assert "table nodes" in str(caught.value)

    def test_a_file_that_is_cut_short_is_named_and_nothing_starts(self, tmp_path: Path) -> None:
        """The process would be killed where it reads beyond the end, without a word."""
        state = open_state(tmp_path)
        with state.change() as change:
            for number in range(2_000):
                change.put(state.nodes, replace(NODE, datanode_id=f"dn{number:04}"))
        state.close()
        file = tmp_path / "state" / "data.mdb"
        os.truncate(file, file.stat().st_size // 2 // 4096 * 4096)

        with pytest.raises(RefusedError, match=r"data\.mdb is truncated") as caught:
            open_state(tmp_path)

        assert caught.value.code is Code.INCONSISTENT_VOLUME

    def test_another_format_version_is_refused(self, tmp_path: Path) -> None:
        """A state of a newer program is not guessed at."""
        open_state(tmp_path).close()
        self.overwrite(tmp_path, b"meta", b"format_version", records.pack([99]))

        with pytest.raises(RefusedError) as caught:
            open_state(tmp_path)

        assert "format version 99" in str(caught.value)

    @staticmethod
    def overwrite(path: Path, database: bytes, row_key: bytes, row: bytes) -> None:
        """Put bytes where a row was, behind the state's back."""
        with lmdb.open(str(path / "state"), max_dbs=16) as environment:
            handle = environment.open_db(database)
            with environment.begin(write=True) as transaction:
                assert transaction.put(row_key, row, db=handle)
