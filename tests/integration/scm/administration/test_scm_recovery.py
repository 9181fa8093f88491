"""After a restore: what datanodes have comes back; nothing is believed that the backup lacks."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from health.cluster_verdict import DataVerdict
from merkle.checksum import Algorithm
from merkle.checksum_columns import container_checksum
from scm.api.responses import counts_message
from scm.api.wire import parse_key
from scm.backup.image import begin_anew
from scm.cluster.nodes import Registration
from scm.state.entities import CommandKind, ContainerState, Key, KeyBlock, OpState, Replica
from scm.state.state_metadata import CONTAINER_GAP
from scm.state.tables.key_table import KeyTable
from suture.errors import Code, RefusedError, UnavailableError
from suture.wire.mapping.bounds import KEY_BYTES_MAX
from tests.support.control.restored import (
    NODES,
    TAKEN_MS,
    codes,
    looked,
    names,
    put,
    recover,
    report,
    restored_world,
)
from tests.support.control.scm_world import ScmWorld, confirm, pass_time, replica, summary, volume
from tests.support.heard import logged


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """A restored control plane."""
    with restored_world(tmp_path / "data") as made:
        yield made


def with_tombstone(*, container_id: int, local_id: int) -> Replica:
    """A replica in which one block is deleted, as its datanode reports it."""
    buried = container_checksum(Algorithm.XXH3_64, [local_id])
    tree = replace(summary(7), tombstone_count=1, tombstones_checksum=buried)
    return replace(replica("dn1", container_id=container_id), tree=tree)


class TestSafeMode:
    def test_safe_mode_ends_with_the_recovery_only(self, world: ScmWorld) -> None:
        """Safe mode does not end when all datanodes have reported, by an operator's request, or
        by a restart.
        """
        report(world, 1, 2)
        assert "this is a backup of 2027-01-15T07:59:59" in world.control.safe_mode.status().reason
        assert not world.control.safe_mode.status().is_open
        with pytest.raises(RefusedError, match="cannot leave safe mode") as caught:
            world.control.safe_mode.leave()
        assert Code.SAFE_MODE == caught.value.code
        with pytest.raises(UnavailableError, match="no block is allocated"):
            world.control.clients.allocate("c", [10])

        world.restart()
        report(world, 1, 2)
        assert not world.control.safe_mode.status().is_open

        recover(world, is_end=True)
        assert world.control.safe_mode.status().is_open
        world.restart()
        assert world.state.restored is None

    def test_safe_mode_after_a_restore_sends_no_copies_or_deletes(self, world: ScmWorld) -> None:
        """None is sent, whatever seems to be missing or surplus."""
        world.join(*NODES)
        for node in NODES:
            answer = world.beat(node, replica(node, container_id=2), full=True)
            assert {CommandKind.CLOSE} >= {command.kind for command, _ in answer.commands}
        pass_time(world, 30, *NODES)
        kinds = {c.kind for node in NODES for c in world.state.commands.of_node(node)}
        assert kinds <= {CommandKind.CLOSE}

    def test_known_nodes_must_have_reported(self, world: ScmWorld) -> None:
        """
        The one that has not is named; by force it goes on without.
        """
        world.join("dn1", "dn2")
        world.beat("dn1", replica("dn1"), full=True)
        world.beat("dn2", replica("dn2"), full=True)

        with pytest.raises(UnavailableError, match="dn3 did not report all containers"):
            recover(world, is_end=True)
        assert world.state.restored is not None

        recover(world, is_end=True, is_forced=True)
        assert world.state.restored is None

    def test_without_any_key_there_is_nothing_to_look_into(self, tmp_path: Path) -> None:
        """
        A backup of the first minute ends as well.
        """
        world = ScmWorld(tmp_path / "young")
        world.state.close()
        begin_anew(tmp_path / "young" / "state", taken_at_ms=TAKEN_MS - 1, now_ms=TAKEN_MS)
        world.start()
        with world.running():
            assert () == world.control.queries.to_recover().container_ids
            recover(world, is_end=True)
            assert world.state.restored is None

    def test_open_container_is_closed_after_a_restore(self, world: ScmWorld) -> None:
        """No writer gets a block in a container that others may have continued."""
        open_one = world.state.containers.get(2)

        assert open_one is not None
        assert ContainerState.CLOSING is open_one.state
        with pytest.raises(UnavailableError):
            world.control.clients.commit(
                "writer", [put("late", 2, 3)], may_replace=False, failed=()
            )

    def test_a_datanodes_own_state_is_newer(self, world: ScmWorld) -> None:
        """
        An order to leave that was given after the backup is kept by the datanode.
        """
        told = Registration("dn1", "dn1:1", "/r", "1", "", 1, (volume(),), OpState.DECOMMISSIONING)
        world.control.datanodes.register(told)
        silent = replace(told, datanode_id="dn2", address="dn2:1", op_state=None)
        world.control.datanodes.register(silent)
        states = [world.state.nodes.get(node) for node in ("dn1", "dn2")]

        assert [OpState.DECOMMISSIONING, OpState.IN_SERVICE] == [
            node.op_state for node in states if node is not None
        ]


class TestIds:
    def test_ids_continue_behind_all_ids_seen(self, world: ScmWorld) -> None:
        """The ids seen are those of the datanodes' containers and of all blocks found."""
        far = world.state.counters["next_container_id"] + 7_000
        report(world, 1, 2, far)

        recover(world, is_end=True, last_local_id=2**60)

        assert far + 1 + CONTAINER_GAP == world.state.counters["next_container_id"]
        assert 2**60 + 1 == world.state.counters["next_local_id"]
        (promised,) = world.control.clients.allocate("c", [10])
        assert (far + 1 + CONTAINER_GAP, 2**60 + 1) == (promised.container_id, promised.local_id)


class TestKeys:
    def test_containers_and_keys_since_the_backup_come_back(self, world: ScmWorld) -> None:
        """
        The container is closed, as its replicas are, and the key is found.
        """
        report(world, 1, 2, 9)
        assert 9 in world.control.queries.to_recover().container_ids

        made = recover(world, put("new", 9, 90), containers=(looked(9),))

        assert [9] == made.adopted
        assert [("new", "RECOVERED")] == codes(made)
        key, (located,) = world.control.clients.lookup("new")
        assert (90, 9, 3) == (key.blocks[0].local_id, located.container_id, len(located.endpoints))
        adopted = world.state.containers.get(9)
        assert adopted is not None
        assert (ContainerState.CLOSED, 5, 1) == (
            adopted.state,
            adopted.sequence_id,
            adopted.committed_count,
        )
        again = recover(world, put("new", 9, 90), containers=(looked(9),))
        assert ([], [("new", "KNOWN")]) == (again.adopted, codes(again))

    def test_a_dry_run_changes_nothing(self, world: ScmWorld) -> None:
        """The dry run returns the same result."""
        report(world, 1, 2, 9)
        before = names(world)

        made = recover(world, put("new", 9, 90), containers=(looked(9),), is_dry_run=True)

        assert ([9], [("new", "RECOVERED")]) == (made.adopted, codes(made))
        assert before == names(world)
        assert world.state.containers.get(9) is None
        assert 9 in world.control.queries.to_recover().container_ids

    def test_newer_of_two_recovered_puts_keeps_the_name(self, world: ScmWorld) -> None:
        """The older one gets another name, in whichever order they are found, and nothing is
        deleted.
        """
        report(world, 1, 2, 9)
        recover(world, put("twice", 9, 90), containers=(looked(9),))
        made = recover(world, put("twice", 9, 95), put("twice", 9, 80))

        assert [("twice", "REPLACED"), ("twice", "KEPT_ASIDE")] == codes(made)
        assert ["twice~90", "twice~80"] == [one.kept_as for one in made.brought]
        assert 95 == world.control.clients.lookup("twice")[0].blocks[0].local_id
        assert {"twice", "twice~90", "twice~80"} <= names(world)
        assert not world.state.transactions.has_any(9)
        again = recover(world, put("twice", 9, 90), put("twice", 9, 80), put("twice", 9, 95))
        assert {"KNOWN"} == {code for _name, code in codes(again)}

    def test_the_older_puts_other_name_is_nobodys(self, world: ScmWorld) -> None:
        """
        A key that happens to have that name keeps it, and its blocks.
        """
        report(world, 1, 2, 9)
        recover(world, put("a", 9, 80), put("a~80", 9, 70), containers=(looked(9),))

        made = recover(world, put("a", 9, 90))

        shown = ("a", "a~80", made.brought[0].kept_as)
        found = [world.control.clients.lookup(name)[0] for name in shown]
        assert [90, 70, 80] == [key.blocks[0].local_id for key in found]

    @pytest.mark.parametrize("name", ["n" * KEY_BYTES_MAX, "\N{SNOWMAN}" * (KEY_BYTES_MAX // 3)])
    def test_the_other_name_is_one_that_calls_take(self, name: str, world: ScmWorld) -> None:
        """This holds for long keys, too. Otherwise the key could be neither read nor removed."""
        report(world, 1, 2, 9)
        recover(world, put(name, 9, 80), containers=(looked(9),))

        made = recover(world, put(name, 9, 90), put(name, 9, 70))

        asides = [one.kept_as for one in made.brought]
        assert 2 == len(set(asides))
        for aside in asides:
            assert aside == parse_key(aside, "key")
            assert aside.startswith(name[:300])
        assert {name, *asides} <= names(world)

    def test_recovery_does_not_restore_a_deleted_key(self, world: ScmWorld) -> None:
        """The backup has the delete."""
        report(world, 1, 2)
        recover(world, is_end=True)
        (key,) = [one for one in world.state.keys.values() if one.blocks[0].container_id == 1]
        world.control.deletions.delete_keys([key.name], dry_run=False)

        assert [(key.name, "DELETED")] == codes(recover(world, key))

    def test_a_key_whose_block_is_buried_is_let_go(self, world: ScmWorld) -> None:
        """Its delete was executed after the backup. A key without a tombstone stays."""
        report(world, 1, 2)
        (key,) = [one for one in world.state.keys.values() if one.blocks[0].container_id == 1]
        assert [] == list(recover(world, containers=(looked(1, 12_345),)).deleted)

        made = recover(world, containers=(looked(1, key.blocks[0].local_id),))

        assert [key.name] == made.deleted
        assert key.name not in names(world)
        assert world.state.transactions.has_any(1)

    def test_containers_with_other_tombstones_are_looked_into(self, world: ScmWorld) -> None:
        """
        Than deletes are known of, be they as many; others that are closed are not asked about.
        """
        report(world, 1, 2)
        assert (2,) == world.control.queries.to_recover().container_ids
        world.beat("dn1", with_tombstone(container_id=1, local_id=77))
        assert (1, 2) == world.control.queries.to_recover().container_ids

        (key,) = [one for one in world.state.keys.values() if one.blocks[0].container_id == 1]
        world.control.deletions.delete_keys([key.name], dry_run=False)
        recover(world, replace(key, name="other", blocks=(replace(key.blocks[0], local_id=78),)))
        assert 1 in world.control.queries.to_recover().container_ids
        world.beat("dn1", with_tombstone(container_id=1, local_id=key.blocks[0].local_id))
        assert 1 not in world.control.queries.to_recover().container_ids

    def test_containers_missing_at_the_recovery_can_be_recovered_later(
        self, world: ScmWorld
    ) -> None:
        """Once its datanode is back, the recovery covers containers that were made between
        backup and recovery and those that were open then, and no others.
        """
        report(world, 1, 2, 9)
        recover(world, containers=(looked(9),))
        recover(world, is_end=True)
        world.restart()
        report(world, 1, 2, 9, 10)
        new = world.made_closed()

        assert (2, 9, 10) == world.control.queries.to_recover().container_ids
        assert new.container_id > 10
        made = recover(world, put("late", 10, 100), containers=(looked(10),))
        assert ([10], [("late", "RECOVERED")]) == (made.adopted, codes(made))

    def test_state_that_was_never_restored_has_nothing_to_recover(self, tmp_path: Path) -> None:
        """This holds whatever was deleted in its containers or failed to be stored."""
        with ScmWorld(tmp_path / "other").running() as world:
            world.join(*NODES)
            confirm(world, *NODES)
            made = world.made_closed()
            world.beat("dn1", with_tombstone(container_id=made.container_id, local_id=77))

            assert ((), ()) == (
                world.control.queries.to_recover().container_ids,
                world.control.queries.to_recover().missing,
            )

    def test_keys_come_back_in_many_calls_without_a_search_of_all_keys(
        self, world: ScmWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only a tombstone of a key's block needs one. Otherwise the time would grow with the
        square of the number of keys.
        """
        report(world, 1, 2, 9)
        searches: list[int] = []
        values = KeyTable.values

        def searched(keys: KeyTable) -> list[Key]:
            searches.append(len(keys))
            return values(keys)

        monkeypatch.setattr(KeyTable, "values", searched)

        for number in range(10):
            made = recover(world, put(f"k{number}", 9, 500 + number), containers=(looked(9, 400),))
            assert [(f"k{number}", "RECOVERED")] == codes(made)

        assert not searches
        assert ["k3"] == recover(world, containers=(looked(9, 503),)).deleted
        assert searches

    def test_a_key_in_a_container_that_nobody_has_is_not_recorded(self, world: ScmWorld) -> None:
        """A key in an unknown container is not recorded, and that container is not created."""
        report(world, 1, 2)

        made = recover(world, put("nowhere", 77, 1), containers=(looked(77),))

        assert ([], [("nowhere", "CONTAINER_NOT_FOUND")]) == (made.adopted, codes(made))

    def test_shards_without_their_code_are_not_adopted(self, world: ScmWorld) -> None:
        """Without the code, the number of shards is unknown."""
        world.join(*NODES)
        for index, node in enumerate(NODES, start=1):
            shard = replica(node, container_id=9, replica_index=index)
            world.beat(node, shard, full=True)

        assert [] == recover(world, containers=(looked(9),)).adopted
        assert [9] == recover(world, containers=(looked(9, scheme="xor-2-1-1024k"),)).adopted
        adopted = world.state.containers.get(9)
        assert adopted is not None
        assert ("xor-2-1-1024k", 3) == (adopted.scheme, adopted.replication_factor)

    def test_keys_that_come_back_count_as_much_as_a_shard_has_of_them(
        self, world: ScmWorld
    ) -> None:
        """The recovered keys count like those written since: six stripes and a half are seven
        cells of 64 KiB.
        """
        report(world, 1, 2, 9)
        block = KeyBlock(9, 90, 5, 6 * 2 * 65_536 + 65_537)
        found = Key("coded", block.length_bytes, 1, (block,))
        for index, node in enumerate(NODES, start=1):
            world.beat(node, replica(node, container_id=9, replica_index=index))

        recover(world, found, containers=(looked(9, scheme="xor-2-1-64k"),))

        adopted = world.state.containers.get(9)
        assert adopted is not None
        assert 7 * 65_536 == adopted.committed_bytes


def test_a_copy_of_the_directory_is_no_second_restore(world: ScmWorld, tmp_path: Path) -> None:
    """The record of the restore is in the state, wherever it is copied."""
    world.state.close()
    shutil.copytree(tmp_path / "data", tmp_path / "moved")
    moved = ScmWorld(tmp_path / "moved")
    assert moved.state.restored == world.state.restored
    moved.state.close()
    world.start()


class TestOlderState:
    """An older state put back by hand, a snapshot of a VM say, knows nothing of its age."""

    @pytest.fixture
    def older(self, tmp_path: Path) -> Iterator[ScmWorld]:
        """A control plane on the state of before container 2 was made, which all nodes have."""
        made = ScmWorld(tmp_path / "data")
        made.join(*NODES)
        confirm(made, *NODES)
        made.made_closed()
        made.state.close()
        shutil.copytree(tmp_path / "data" / "state", tmp_path / "older")
        made.start()
        made.join(*NODES)
        confirm(made, *NODES)
        assert 2 == made.made_closed().container_id
        made.state.close()
        shutil.rmtree(tmp_path / "data" / "state")
        (tmp_path / "older").rename(tmp_path / "data" / "state")
        made.start()
        with made.running():
            yield made

    def test_older_state_is_reported_in_log_status_and_verdict(self, older: ScmWorld) -> None:
        """Acknowledged keys are not found, so no query may report a whole cluster without the
        reason. The event is logged once, however many containers are concerned.
        """
        with logged() as said:
            report(older, 1, 2, 3, bcsid=1)
        older.control.tick()

        counts = older.control.queries.count_containers()
        _look, judgement = older.control.queries.judgement()
        answer = counts_message(counts, judgement)

        told = [line for line in said if line["event"] == "state_older_than_datanodes"]
        assert [(2, "dn1")] == [(line["container_id"], line["datanode_id"]) for line in told]
        assert (2, 1) == (counts.stray, counts.whole)
        assert DataVerdict.WHOLE is not judgement.verdict
        assert "suture scm recover" in [reason.command for reason in judgement.reasons]
        assert 1 == sum("(suture scm recover)" in text for text in answer.reasons)
        assert 2 == older.control.queries.figures().stray

    def test_older_state_report_ends_with_the_recovery(self, older: ScmWorld) -> None:
        """Containers that were recovered are known and whole again."""
        report(older, 1, 2)

        recover(older, containers=(looked(2),))

        assert 0 == older.control.queries.count_containers().stray

    def test_adopted_containers_are_managed_and_their_ids_not_reused(self, older: ScmWorld) -> None:
        """Without the recovery, such a container was not managed. After its replicas had gone,
        its number would have been allocated again; nor is a block id allocated again.
        """
        report(older, 1, 2, 6)
        pass_time(older, 5, *NODES)
        puts = put("a", 2, 450), put("b", 6, 500)
        recover(older, *puts, containers=(looked(6), looked(2)), last_local_id=500, is_end=True)
        pass_time(older, 5, *NODES)

        report(older)
        pass_time(older, 5, *NODES)
        found = older.control.queries.report()
        (promised,) = older.control.clients.allocate("c", [10])

        assert {2, 6} <= set(found.conditions["MISSING"][1])
        assert promised.container_id > 6
        assert promised.local_id > 500

    def test_replica_of_a_forgotten_container_is_no_stray(self, older: ScmWorld) -> None:
        """A replica of a forgotten container is expected, and is shown as that."""
        report(older, 1, bcsid=1)
        for _ in range(3):
            older.control.tick()
        report(older)
        [fate] = older.control.forgetting.forget([1], worlds=[], is_dry_run=False)
        assert "OK" == fate.code
        report(older, 1, bcsid=1)

        assert 0 == older.control.queries.count_containers().stray
