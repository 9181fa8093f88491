"""Starts of the control plane: hot, cold, from an older state; nothing is done before it knows."""

from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from merkle.replica import LAYOUT_VERSION
from scm.administration.decommission import OpStateRequest
from scm.state import records
from scm.state.database import StateDatabase
from scm.state.entities import CommandKind, OpState
from scm.state.options import ScmOptions
from suture.errors import Code, RefusedError, UnavailableError
from suture.runtime.exit_codes import ExitCode
from tests.support.command_line import CommandLine
from tests.support.control.scm_world import MAP_BYTES, ScmWorld, confirm, key, pass_time, replica

POOLS = tuple(f"dn{i}" for i in range(10))
OPTIONS = ScmOptions(
    stale_after_ms=30_000,
    dead_after_ms=60_000,
    check_interval_ms=1_000,
    safemode_wait_ms=300_000,
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Ten nodes that have called."""
    with ScmWorld(tmp_path, OPTIONS).running() as made:
        made.join(*POOLS)
        confirm(made, *POOLS)
        made.control.tick()
        yield made


def rest(world: ScmWorld, node: str) -> None:
    """Let a node go into maintenance, as far as it goes."""
    request = OpStateRequest((node,), OpState.ENTERING_MAINTENANCE)
    assert ["OK"] == [d.code for d in world.control.departure_requests.submit(request)]
    for state in (OpState.ENTERING_MAINTENANCE, OpState.IN_MAINTENANCE):
        world.kept[node] = (state, 0)
        pass_time(world, 3, *POOLS)
    assert OpState.IN_MAINTENANCE is world.state.nodes.get(node).op_state  # type: ignore[union-attr]


class TestHot:
    def test_s5_17_of_ten_nodes_only_the_eight_that_were_online_are_waited_for(
        self, world: ScmWorld
    ) -> None:
        """One node is dead and one in maintenance. A node that reported and left again counts as
        seen.
        """
        dead, resting, *online = POOLS
        rest(world, resting)
        pass_time(world, 61, *online)
        world.restart()
        world.join(*online)
        before = world.control.safe_mode.status()
        confirm(world, *online[:7])
        pass_time(world, 40, *online[1:])  # the first dropped out
        seven = world.control.safe_mode.status()
        confirm(world, online[7])

        after = world.control.safe_mode.status()

        assert (False, 8, tuple(sorted(online))) == (
            before.is_open,
            before.expected_count,
            before.missing,
        )
        assert (False, (online[7],)) == (seven.is_open, seven.missing)
        assert "7 of 8 nodes that were online have reported" in seven.reason
        assert (True, ()) == (after.is_open, after.missing)
        assert dead not in before.missing

    def test_a_node_that_calls_but_names_nothing_is_waited_for(self, world: ScmWorld) -> None:
        """Its replicas are not known to be there."""
        world.restart()
        world.join(*POOLS)
        confirm(world, *POOLS[:9])
        world.call(POOLS[9])

        assert (POOLS[9],) == world.control.safe_mode.status().missing

    def test_commands_from_before_a_hot_start_wait_for_the_gate(self, world: ScmWorld) -> None:
        """Copies, deletes of all kinds and decisions wait. A close is harmless and is sent."""
        made = world.made_closed()
        held = [r.datanode_id for r in world.state.replicas.of(made.container_id)]
        target = next(node for node in POOLS if node not in held)
        (copy,) = world.control.admin.replicate(
            [made.container_id], target_id=target, worlds=(), dry_run=False
        )
        (delete,) = world.control.admin.delete(
            [made.container_id], datanode_id=held[-1], worlds=(), dry_run=False
        )
        world.control.admin.reconcile([made.container_id])
        world.control.deletions.delete_keys(
            [key.name for key in world.state.keys.values()], dry_run=False
        )
        world.control.clients.allocate("open", [10])
        (opened,) = world.state.containers.open_all()
        for node in opened.pipeline:
            world.beat(node, replica(node, container_id=opened.container_id, bcsid=1))
        world.restart()
        world.join(*POOLS)
        confirm(world, *POOLS[:-1])
        world.control.tick()

        answered = [c.kind for node in POOLS for c, _named in world.call(node).commands]
        refused = world.control.admin.replicate(
            [made.container_id], target_id=target, worlds=(), dry_run=False
        )
        sent = {c.kind for c in world.state.commands.values() if c.sent_at_s is not None}
        waiting = {c.command_id for c in world.state.commands.values() if c.sent_at_s is None}
        world.control.safe_mode.leave()
        then = {c.kind for node in POOLS for c, _named in world.call(node).commands}

        assert {CommandKind.CLOSE} >= sent | set(answered)
        assert ["SAFE_MODE"] == [d.code for d in refused]
        assert {*copy.command_ids, *delete.command_ids} <= waiting
        assert {CommandKind.REPLICATE, CommandKind.RECONCILE, CommandKind.DELETE_BLOCKS} <= then


def test_the_operator_is_told_who_is_waited_for(
    world: ScmWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its address and what is missing of it; and that a node is read-only."""
    world.restart()
    world.join(*POOLS[:9])
    confirm(world, *POOLS[:8])
    world.join("dn10", layout_version=LAYOUT_VERSION + 1)
    with world.served() as address:
        suture = CommandLine(address, capsys)
        text = suture("scm", "safemode", code=ExitCode.TO_DO)
        facts = suture.json("scm", "safemode", code=ExitCode.TO_DO)
        nodes = suture("scm", "nodes")
        left = suture("scm", "safemode", "--leave", "--yes")

    assert "safe mode is on (restart): 8 of 10 nodes that were online have reported" in text
    assert "waits for dn8 (dn8:9859, /rack-1): has not reported all its replicas" in text
    assert "waits for dn9 (dn9:9859, /rack-1): has not called" in text
    assert (["dn8", "dn9"], 10) == (facts["missing_datanode_ids"], facts["expected_count"])
    assert 1 == nodes.count("read-only")
    assert "safe mode is off (restart): opened by an operator" in left


def test_report_gives_the_verdict_and_its_reasons(
    world: ScmWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world.restart()
    world.join(*POOLS)
    confirm(world, *POOLS[:8])
    with world.served() as address:
        facts = CommandLine(address, capsys).json("scm", "report", code=ExitCode.UNAVAILABLE)

    assert ("UNKNOWN", False) == (facts["verdict"], facts["healthy"])
    assert "safe mode: 8 of 10 nodes that were online have reported" in facts["summary"]


class TestCold:
    def test_cold_start_forgets_replica_locations_only(self, world: ScmWorld) -> None:
        """The replicas of a node in maintenance are kept, because it cannot report."""
        made = world.made_closed()
        held = [r.datanode_id for r in world.state.replicas.of(made.container_id)]
        rest(world, held[0])
        world.control.admin.reconcile([made.container_id])

        world.restart(is_cold=True)

        assert [held[0]] == [r.datanode_id for r in world.state.replicas.values()]
        assert [] == world.state.commands.values()
        assert made == world.state.containers.get(made.container_id)
        assert 1 == len(world.state.keys)
        assert OpState.IN_MAINTENANCE is world.state.nodes.get(held[0]).op_state  # type: ignore[union-attr]

    def test_cold_start_waits_longer_and_for_all_known_nodes(self, world: ScmWorld) -> None:
        """The start waits for the dead node, too, because its replicas are unknown."""
        dead, resting, *online = POOLS
        rest(world, resting)
        pass_time(world, 61, *online)
        made = world.made_closed()
        whole = world.state.replicas.of(made.container_id)
        world.restart(is_cold=True)
        world.join(*online)
        for node in online:
            world.beat(node, *(r for r in whole if r.datanode_id == node), full=True)

        pass_time(world, 600, *online)
        early = world.control.safe_mode.status()
        ordered = world.state.commands.values()
        pass_time(world, 601, *online)
        late = world.control.safe_mode.status()

        assert (False, True, (dead,)) == (early.is_open, early.is_cold, early.missing)
        assert [] == ordered
        assert late.is_open

    def test_without_a_known_node_it_waits_for_those_that_come(self, tmp_path: Path) -> None:
        """A hot start on an empty state has nothing to lose and opens at once."""
        with ScmWorld(tmp_path, OPTIONS).running() as world:
            hot = world.control.safe_mode.status()
            world.restart(is_cold=True)
            cold = world.control.safe_mode.status()

            assert (True, False) == (hot.is_open, cold.is_open)
            assert "no node is known" in cold.reason


@pytest.mark.parametrize("version", [0, 2, 7])
def test_a_state_of_another_version_is_refused_by_name(tmp_path: Path, version: int) -> None:
    """Nothing of it is changed: the program that wrote it reads it afterwards."""
    StateDatabase.open(tmp_path, map_bytes=MAP_BYTES).close()
    with lmdb.open(str(tmp_path / "state"), map_size=MAP_BYTES, max_dbs=16) as environment:
        meta = environment.open_db(b"meta")
        with environment.begin(write=True) as transaction:
            transaction.put(b"format_version", records.pack([version]), db=meta)
    before = (tmp_path / "state" / "data.mdb").read_bytes()

    with pytest.raises(RefusedError, match=f"format version {version}, this program reads 1"):
        StateDatabase.open(tmp_path, map_bytes=MAP_BYTES)

    assert before == (tmp_path / "state" / "data.mdb").read_bytes()


def test_a_file_is_no_directory_of_a_state(tmp_path: Path) -> None:
    """A place where no directory can be created is refused as well, and the error names it."""
    (tmp_path / "file").touch()

    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(
            RefusedError, match=f"{place} cannot be the directory of a state"
        ) as refused:
            StateDatabase.open(place, map_bytes=MAP_BYTES)
        assert Code.INCONSISTENT_VOLUME is refused.value.code


def test_s3_32_no_key_is_written_before_the_gate_opens(world: ScmWorld) -> None:
    """Allocations and commits are refused. Existing keys can be read, and sessions may end."""
    world.write("before", "there", 5)
    blocks = world.control.clients.allocate("writer", [5])
    world.restart()
    waiting = key("late", blocks, [5])

    for refused in (
        lambda: world.control.clients.allocate("writer", [5]),
        lambda: world.control.clients.commit("writer", [waiting], may_replace=False, failed=()),
    ):
        with pytest.raises(UnavailableError) as caught:
            refused()
        assert Code.SAFE_MODE is caught.value.code
    found, _containers = world.control.clients.lookup("there")
    world.join(*POOLS, boot_id=2)
    for node in POOLS:
        mine = [r for r in world.state.replicas.values() if r.datanode_id == node]
        world.beat(node, *mine, full=True, boot_id=2)
    world.control.clients.commit("writer", [waiting], may_replace=False, failed=())

    assert ("there", 5) == (found.name, found.size_bytes)
    assert world.control.clients.allocate("writer", [5])
    assert "late" == world.control.clients.lookup("late")[0].name
