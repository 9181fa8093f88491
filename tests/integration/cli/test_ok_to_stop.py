"""ok-to-stop against a real cluster: what they say is proven by stopping datanodes."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from agent.cli.main import run
from suture.runtime.exit_codes import ExitCode
from tests.support.command_line import CommandLine
from tests.support.forked_cluster import forked_cluster
from tools.demo.cluster import Cluster

pytestmark = pytest.mark.slow

AGENTS = 5
COPIES, CODED = 6, 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return five datanodes with one volume each; a silent one is waited for all the time."""
    root = tmp_path_factory.mktemp("ok-to-stop")
    settings = {"stale_after_ms": 1_500, "dead_after_ms": 600_000}
    running = forked_cluster(
        root,
        agents=AGENTS,
        scm_settings=settings,
    )
    with running:
        yield running


@pytest.fixture
def keys(suture: CommandLine, tmp_path: Path) -> dict[str, int]:
    """Return keys, each alone in a closed container, some of shards; and the container of each."""
    stored = {item["key"]: 0 for item in suture.json("ls", "file")["keys"]}
    path = tmp_path / "file"
    for number in range(0 if stored else COPIES + CODED):
        prefix = f"file{number}/"
        path.write_bytes(os.urandom(200_000 + number))
        coding = ["--replication", "xor-2-1-64k"] if number >= COPIES else []
        suture("put", str(path), "--prefix", prefix, "--close", "--sessions", "1", *coding)
    found = {
        item["key"]: number
        for number, item in enumerate(suture.json("ls", "file")["keys"], start=1)
    }
    for number in found.values():
        suture.wait_until_reported(number)
    suture.wait_until(
        lambda: all(c["state"] == "CLOSED" for c in suture.json("scm", "containers")["containers"])
    )
    return found


def holders(suture: CommandLine) -> dict[int, list[str]]:
    """Return who holds each container."""
    return {
        int(c["container_id"]): [r["datanode"]["datanode_id"] for r in c["replicas"]]
        for c in suture.json("scm", "containers")["containers"]
    }


@contextmanager
def stopped(cluster: Cluster, suture: CommandLine, ids: Sequence[str]) -> Iterator[None]:
    """Stop datanodes for a while."""
    places = {node["datanode_id"]: node["address"] for node in suture.json("scm", "nodes")["nodes"]}
    addresses = {places[name] for name in ids}
    off = [i for i, node in enumerate(cluster.nodes) if node.address in addresses]
    assert len(ids) == len(off)
    for index in off:
        cluster.nodes[index].stop()
    try:
        yield
    finally:
        for index in off:
            cluster.start_again(index)
        suture.wait_until(
            lambda: {"HEALTHY"} == {node["health"] for node in suture.json("scm", "nodes")["nodes"]}
        )
        suture.wait_until(lambda: "YES" == ask(suture, ids[:1])["answer"])


def ask(suture: CommandLine, names: Sequence[str], command: str = "ok-to-stop") -> Any:
    """Ask, whatever the exit code."""
    return suture.json_any(command, *names)


def readable(suture: CommandLine, keys: dict[str, int], path: Path) -> set[str]:
    """Return the keys that can be read whole."""
    words = ["--scm", suture.scm, "--output", str(path)]
    found = set()
    for key in keys:
        path.unlink(missing_ok=True)
        if run(["get", key, *words]) == ExitCode.OK:
            found.add(key)
    suture.capsys.readouterr()
    return found


class TestOkToStop:
    def test_after_a_yes_every_key_can_be_read(
        self, cluster: Cluster, suture: CommandLine, keys: dict[str, int], tmp_path: Path
    ) -> None:
        """One datanode of five is stopped, and every key is readable."""
        name = holders(suture)[1][0]
        answer = suture.json("ok-to-stop", name[:8])
        assert "YES" == answer["answer"]
        assert answer["container_count"] == sum(name in nodes for nodes in holders(suture).values())

        with stopped(cluster, suture, [name]):
            assert {*keys} == readable(suture, keys, tmp_path / "back")

    def test_after_a_no_exactly_the_named_cannot_be_read(
        self, cluster: Cluster, suture: CommandLine, keys: dict[str, int], tmp_path: Path
    ) -> None:
        """
        Three datanodes that hold all replicas of one container: the keys of the containers that the
        answer names are lost to readers while they are off, and no other.
        """
        names = holders(suture)[1]
        answer = suture.json("ok-to-stop", *names, code=ExitCode.TO_DO)
        unreadable = set(answer["unreadable_container_ids"])
        assert 1 in unreadable
        assert len(unreadable) == answer["unreadable_count"] < len(keys)

        with stopped(cluster, suture, names):
            lost = {*keys} - readable(suture, keys, tmp_path / "back")

        assert unreadable == {keys[key] for key in lost}

    def test_every_pair_is_judged_as_its_replicas_lie(
        self, suture: CommandLine, keys: dict[str, int]
    ) -> None:
        """
        By hand: copies are readable while one holder stays, shards of xor-2-1 while two do.
        """
        where = holders(suture)
        coded = {number for key, number in keys.items() if int(key[4]) >= COPIES}
        for pair in combinations(
            [node["datanode_id"] for node in suture.json("scm", "nodes")["nodes"]], 2
        ):
            left = {number: set(nodes) - {*pair} for number, nodes in where.items()}
            expected = {n for n, nodes in left.items() if len(nodes) < (2 if n in coded else 1)}

            answer = ask(suture, pair)

            assert expected == set(answer["unreadable_container_ids"]), pair
            assert ("NO" if expected else "YES") == answer["answer"]

    def test_a_volume_and_a_rack_are_named_too(
        self, suture: CommandLine, keys: dict[str, int]
    ) -> None:
        """
        A volume by its id, or by datanode and path; the only volume of a datanode is all it has.
        """
        node = suture.json("scm", "nodes")["nodes"][0]
        [volume] = node["volumes"]
        whole = ask(suture, [node["datanode_id"]])

        by_id = ask(suture, [volume["volume_id"]])
        by_path = ask(suture, [f"{node['address']}:{volume['path']}"])
        rack = ask(suture, [node["rack"]])

        room = {"free_bytes": 0}  # moves by itself
        assert by_id | room == by_path | room
        assert whole["container_count"] == by_id["container_count"] > 0
        assert whole["unreadable_container_ids"] == by_id["unreadable_container_ids"]
        assert rack["container_count"] >= whole["container_count"]
        assert 0 < len(keys)

    def test_while_one_is_silent_nobody_can_tell(
        self, cluster: Cluster, suture: CommandLine, keys: dict[str, int]
    ) -> None:
        """
        With one holder silent and not dead, to stop the other two of a container is no yes.
        """
        first, *others = holders(suture)[1]
        assert keys
        with stopped(cluster, suture, [first]):
            suture.wait_until(
                lambda: (
                    "STALE"
                    in {
                        node["health"]
                        for node in suture.json("scm", "nodes")["nodes"]
                        if node["datanode_id"] == first
                    }
                )
            )
            answer = ask(suture, others)
            assert answer["answer"] != "YES"
            assert 1 in {
                *answer["doubtful_container_ids"],
                *answer["unreadable_container_ids"],
            }

    def test_ok_to_stop_refuses_an_unknown_name(self, suture: CommandLine) -> None:
        """The error has the name that was given and says where to find valid ones."""
        for name in ("nobody", "/no/rack", "127.0.0.1:1", "0:/no"):
            refused = suture.json("ok-to-stop", name, code=ExitCode.FAILED)
            assert "WRONG_DATANODE" == refused["error"]["code"], name

    def test_people_are_told_in_words(self, suture: CommandLine, keys: dict[str, int]) -> None:
        """
        The first word is the answer.
        """
        names = holders(suture)[1]
        assert keys

        assert suture("ok-to-stop", names[0]).startswith("yes: ")
        assert suture("ok-to-stop", *names, code=ExitCode.TO_DO).startswith("no: ")


class TestOkToStopForGood:
    def test_ok_to_stop_names_lost_containers_and_counts_rebuilds(
        self, suture: CommandLine, keys: dict[str, int]
    ) -> None:
        """Stopping all holders of a container loses it. Stopping one datanode loses nothing, and
        all its bytes are rebuilt.
        """
        names = holders(suture)[1]
        assert keys

        all_three = suture.json(
            "ok-to-stop", "--for-good", names[0], names[1], names[2], code=ExitCode.TO_DO
        )
        alone = suture.json("ok-to-stop", "--for-good", names[0])

        assert 1 in all_three["lost_container_ids"]
        assert all_three["lost_count"] == sum(all_three["lost_states"].values())
        assert 0 == alone["lost_count"]
        assert alone["rebuild_bytes"] > 0
        assert alone["missing_replica_count"] == alone["container_count"]
        assert "lost: " in suture("ok-to-stop", "--for-good", *names, code=ExitCode.TO_DO)
