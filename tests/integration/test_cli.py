"""`suture` against a real cluster: what its user types, what it prints, how it exits."""

from pathlib import Path

import pytest

from agent.cli.main import run
from agent.cli.output import Exit
from agent.demo.cluster import Cluster
from agent.demo.damage import Target, append_garbage, flip_bit_under_warm_cache, zero_page
from tests.support.command_line import CommandLine
from tests.support.three_replicas import content

pytestmark = pytest.mark.slow

FILE_BYTES = 40_000


@pytest.fixture
def suture(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return the command line of the shared cluster."""
    return CommandLine(cluster.scm.address, capsys)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a directory of a few files, one of them empty."""
    directory = tmp_path / "files"
    directory.mkdir()
    for number in range(4):
        (directory / f"file{number}").write_bytes(content(number, 0, FILE_BYTES))
    (directory / "empty").write_bytes(b"")
    return directory


def store(suture: CommandLine, files: Path, prefix: str) -> list[int]:
    """Store the files under `prefix` and close; return the containers."""
    stored = suture.json("put", str(files), "--prefix", prefix, "--close", "--lanes", "1")
    container_ids: list[int] = stored["container_ids"]
    suture.wait_until_closed(container_ids)
    return container_ids


def target(cluster: Cluster, index: int, container_id: int, block_index: int) -> Target:
    """Return a block of the replica on one datanode."""
    [root] = cluster.volume_paths(index)[0].glob(f"hdds/*/current/containerDir*/{container_id}")
    blocks = sorted(root.glob("chunks/*.block"), key=lambda path: int(path.stem))
    block_id = int(blocks[block_index].stem)
    size = blocks[block_index].stat().st_size
    return Target(container_id, root, (block_id,), (size,), (size,))


class TestKeys:
    def test_what_was_put_is_listed_and_comes_back(
        self, suture: CommandLine, files: Path, tmp_path: Path
    ) -> None:
        """
        A directory that was put is listed key by key, and each file comes back byte for byte.
        """
        stored = suture.json("put", str(files), "--prefix", "keys/")

        listed = suture.json("ls", "keys/")

        assert {item["key"] for item in stored["stored"]} == {item["key"] for item in listed}
        for path in files.iterdir():
            suture("get", f"keys/files/{path.name}", "--output", str(tmp_path / "back"))
            assert path.read_bytes() == (tmp_path / "back").read_bytes()
        assert {3} == {item["replicas"] for item in stored["stored"]}

    def test_an_existing_key_is_not_overwritten_unless_told(
        self, suture: CommandLine, files: Path
    ) -> None:
        """
        Putting a key again is refused; with --replace it is done.
        """
        suture("put", str(files / "file0"), "--prefix", "twice/")

        refused = suture.json("put", str(files / "file0"), "--prefix", "twice/", code=Exit.FAILED)

        assert "KEY_EXISTS" == refused["error"]["code"]
        suture("put", str(files / "file0"), "--prefix", "twice/", "--replace")

    def test_an_unknown_key_is_refused_by_name(self, suture: CommandLine, tmp_path: Path) -> None:
        """
        Getting what is not there fails, names it, and leaves no file behind.
        """
        output = tmp_path / "nothing"

        suture("get", "no/such/key", "--output", str(output), code=Exit.FAILED)

        assert not output.exists()
        assert [] == list(tmp_path.glob(".nothing*"))

    def test_a_path_that_is_not_there_is_refused(self, suture: CommandLine) -> None:
        """
        Putting a path that does not exist stores nothing and says which path.
        """
        answer = suture.json("put", "/no/such/path", code=Exit.FAILED)

        assert "/no/such/path" in answer["error"]["message"]


class TestReplicas:
    def test_equal_replicas_have_nothing_to_differ_in(
        self, suture: CommandLine, files: Path
    ) -> None:
        """
        After a close all replicas have one root: tree, diff, explain and status agree on it.
        """
        [container_id] = store(suture, files, "equal/")

        trees = suture.json("tree", str(container_id))
        comparisons = suture.json("diff", str(container_id))
        explained = suture.json("explain", str(container_id))

        assert 1 == len({tree["root"] for tree in trees})
        assert 3 == len(trees)
        assert {"EQUAL"} == {pair["verdict"] for pair in comparisons}
        assert [] == [f for found in explained["findings"].values() for f in found]

    def test_damage_is_found_explained_and_healed(
        self, cluster: Cluster, suture: CommandLine, files: Path
    ) -> None:
        """
        Three replicas damaged differently: scan finds it, explain says it, reconcile mends it.
        """
        [container_id] = store(suture, files, "damaged/")
        flip_bit_under_warm_cache(target(cluster, 0, container_id, 1))
        zero_page(target(cluster, 1, container_id, 2))
        append_garbage(target(cluster, 2, container_id, 3))

        results = suture.json("scan", str(container_id), code=Exit.TO_DO)
        differences = suture.json("diff", str(container_id), code=Exit.TO_DO)
        explained = suture.json("explain", str(container_id), code=Exit.TO_DO)
        suture.json("status", code=Exit.TO_DO)
        healed = suture.json("reconcile", str(container_id))

        assert [1, 1, 1] == sorted(result["finding_count"] for result in results.values())
        faults = {f["fault"] for found in explained["findings"].values() for f in found}
        assert {"CHUNK_CHECKSUM", "TRAILING_BYTES"} == faults
        kinds = {item["kind"] for pair in differences for item in pair["differences"]}
        assert {"CORRUPT_CHUNK", "PEER_UNHEALTHY"} <= kinds
        assert {"converged"} == {o["status"]["reconcile"]["result"] for o in healed["outcomes"]}
        fetched = sum(int(o["status"]["reconcile"]["bytes_fetched"]) for o in healed["outcomes"])
        assert 2 * FILE_BYTES == fetched
        suture.json("diff", str(container_id))
        assert 0 == sum(r["finding_count"] for r in suture.json("scan", str(container_id)).values())
        suture.wait_until_closed([container_id])

    def test_tables_are_for_people(self, suture: CommandLine, files: Path) -> None:
        """
        Without --json the same commands print tables with what a person looks for.
        """
        [container_id] = store(suture, files, "people/")

        assert "3 CLOSED" not in suture("scm", "nodes")
        assert "CLOSED" in suture("scm", "container", str(container_id))
        assert "root" in suture("tree", str(container_id), "--chunks")
        assert "EQUAL" in suture("diff", str(container_id))
        assert "nothing is wrong here" in suture("explain", str(container_id))
        assert "equal and whole on all replicas" in suture("status")
        assert "people/files/file0" in suture("ls", "people/")

    def test_an_unknown_container_is_refused(self, suture: CommandLine) -> None:
        """
        Every command that names a container refuses one that nobody knows.
        """
        for command in ("tree", "diff", "explain", "scan"):
            answer = suture.json(command, "999999", code=Exit.FAILED)
            assert "CONTAINER_NOT_FOUND" == answer["error"]["code"]
        [decision] = suture.json("reconcile", "999999", code=Exit.FAILED)["decisions"]
        assert "CONTAINER_NOT_FOUND" == decision["code"]


class TestCommandLine:
    def test_a_wrong_command_line_is_64(self) -> None:
        """
        Usage errors have an exit code of their own, apart from what commands return.
        """
        assert Exit.USAGE == run(["no-such-command"])
        assert Exit.USAGE == run(["tree", "not-a-number"])

    def test_no_scm_is_3(self, capsys: pytest.CaptureFixture[str]) -> None:
        """
        An SCM that cannot be reached is worth another try, and the exit code says so.
        """
        assert Exit.UNAVAILABLE == run(["status", "--scm", "127.0.0.1:1"])

        assert "UNAVAILABLE" in capsys.readouterr().err
