"""`suture` against a real cluster: what its user types, what it prints, how it exits."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import SourceFile
from suture.errors import Code, RefusedError
from suture.runtime.exit_codes import ExitCode
from suture.terminal.output import people
from tests.support.command_line import CommandLine
from tests.support.storage.three_replicas import content
from tools.demo.cluster import Cluster
from tools.demo.damage import Target, append_garbage, flip_bit_under_warm_cache, zero_page

pytestmark = pytest.mark.slow

FILE_BYTES = 40_000


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
    stored = suture.json("put", str(files), "--prefix", prefix, "--close", "--sessions", "1")
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
    def test_stored_directory_is_listed_and_read_back(
        self, suture: CommandLine, files: Path, tmp_path: Path
    ) -> None:
        """A directory that was stored is listed key by key, and each file reads back byte for
        byte.
        """
        stored = suture.json("put", str(files), "--prefix", "keys/")

        listed = suture.json("ls", "keys/")["keys"]

        assert {item["key"] for item in stored["keys"]} == {item["key"] for item in listed}
        [one, *_] = listed
        place = one["blocks"][0]["container_id"]
        there = suture.json("ls", "keys/", "--container", str(place))["keys"]
        assert [
            item for item in listed if place in {b["container_id"] for b in item["blocks"]}
        ] == there
        for path in files.iterdir():
            suture("get", f"keys/files/{path.name}", "--output", str(tmp_path / "back"))
            assert path.read_bytes() == (tmp_path / "back").read_bytes()
        assert {3} == {item["replica_count"] for item in stored["keys"]}

    def test_an_existing_key_is_not_overwritten_unless_told(
        self, suture: CommandLine, files: Path
    ) -> None:
        """
        Putting a key again is refused; with --replace it is done.
        """
        suture("put", str(files / "file0"), "--prefix", "twice/")

        refused = suture.json(
            "put", str(files / "file0"), "--prefix", "twice/", code=ExitCode.FAILED
        )

        assert "KEY_EXISTS" == refused["error"]["code"]
        suture("put", str(files / "file0"), "--prefix", "twice/", "--replace")

    def test_an_unknown_key_is_refused_by_name(self, suture: CommandLine, tmp_path: Path) -> None:
        """
        Getting what is not there fails, names it, and leaves no file behind.
        """
        output = tmp_path / "nothing"

        suture("get", "no/such/key", "--output", str(output), code=ExitCode.FAILED)

        assert not output.exists()
        assert [] == list(tmp_path.glob(".nothing*"))

    def test_a_path_that_is_not_there_is_refused(self, suture: CommandLine) -> None:
        """A path that does not exist stores nothing, and the error names it."""
        answer = suture.json("put", "/no/such/path", code=ExitCode.FAILED)

        assert "/no/such/path" in answer["error"]["message"]


class TestNames:
    def test_a_name_that_looks_like_markup_is_shown_as_it_is(
        self, suture: CommandLine, files: Path
    ) -> None:
        """
        Square brackets in a key are characters: they are listed, fetched and complained about.
        """
        (files / "[b]x").write_bytes(b"bracket")
        suture("put", str(files / "[b]x"), "--prefix", "names/[/b]")

        listed = suture("ls", "names/")

        assert "names/[/b][b]x" in listed
        assert "bracket" == suture("get", "names/[/b][b]x")

    @pytest.mark.parametrize("name", [b"new\nline", b"not-utf8-\xff", b"escape\x1b[31m"])
    def test_a_name_that_cannot_be_a_key_is_refused_before_anything_is_stored(
        self, suture: CommandLine, files: Path, name: bytes
    ) -> None:
        """One impossible name among many files stops the whole put, and the message is
        printable.
        """
        (files / os.fsdecode(name)).write_bytes(b"")

        answer = suture.json("put", str(files), "--prefix", "odd/", code=ExitCode.FAILED)

        assert "MALFORMED_REQUEST" == answer["error"]["code"]
        assert answer["error"]["message"].isprintable()
        assert [] == suture.json("ls", "odd/")["keys"]

    def test_two_files_for_one_key_are_refused_before_anything_is_stored(
        self, suture: CommandLine, files: Path
    ) -> None:
        """
        The same key twice in one command would lose a file; the message names both.
        """
        same = ("put", str(files / "file0"), str(files / "file0"), "--prefix", "one/", "--replace")

        answer = suture.json(*same, code=ExitCode.FAILED)

        assert "one/file0" in answer["error"]["message"]
        assert [] == suture.json("ls", "one/")["keys"]

    def test_the_directory_one_stands_in_has_a_name(
        self, suture: CommandLine, files: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        `put .` stores under the directory's name, not under an empty one.
        """
        monkeypatch.chdir(files)

        suture("put", ".", "--prefix", "dot/")

        assert "dot/files/file0" in {item["key"] for item in suture.json("ls", "dot/")["keys"]}

    def test_a_pipe_is_no_file(self, suture: CommandLine, tmp_path: Path) -> None:
        """The error says that it is neither a file nor a directory, and not that it is missing."""
        os.mkfifo(tmp_path / "pipe")

        answer = suture.json("put", str(tmp_path / "pipe"), code=ExitCode.FAILED)

        assert "neither a file nor a directory" in answer["error"]["message"]

    def test_an_empty_directory_is_nothing_to_store(
        self, suture: CommandLine, tmp_path: Path
    ) -> None:
        """The output has no sums."""
        assert "nothing to store" in suture("put", str(tmp_path))


class TestPut:
    def test_a_refused_put_gives_its_containers_back(
        self, suture: CommandLine, files: Path
    ) -> None:
        """
        Puts that fail do not leave open containers behind, each reserving room on three disks.
        """
        suture("put", str(files / "file0"), "--prefix", "again/")

        def open_count() -> int:
            return sum(c["state"] == "OPEN" for c in suture.json("scm", "containers")["containers"])

        before = open_count()
        for _ in range(3):
            answer = suture.json("put", str(files / "file0"), "--prefix", "again/", code=1)
            assert "--replace" in answer["error"]["hint"]
            assert "0" == answer["error"]["facts"]["stored_files"]

        assert open_count() <= before

    def test_ctrl_c_stops_before_the_next_chunk(self, cluster: Cluster, tmp_path: Path) -> None:
        """
        An interrupted put does not write on to the end of its batch: no key of it is there.
        """
        path = tmp_path / "one"
        path.write_bytes(content(1, 0, FILE_BYTES))
        sources = [SourceFile(f"interrupted/{number}", path, FILE_BYTES) for number in range(30)]

        def interrupt() -> None:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        with ClusterClient(cluster.scm.address) as client:
            with pytest.raises(KeyboardInterrupt):
                client.put(sources, lanes=1, progress=lambda _: interrupt())
            with pytest.raises(RefusedError) as refused:
                client.find("interrupted/0")

        assert Code.KEY_NOT_FOUND is refused.value.code


class TestGet:
    def test_a_directory_is_not_replaced(
        self, suture: CommandLine, files: Path, tmp_path: Path
    ) -> None:
        """
        An output that is a directory is refused, and nothing is left beside it.
        """
        suture("put", str(files / "file0"), "--prefix", "get/")
        before = set(tmp_path.iterdir())

        suture("get", "get/file0", "--output", str(files), code=ExitCode.FAILED)

        assert before == set(tmp_path.iterdir())

    def test_a_device_is_written_to_and_not_replaced(
        self, suture: CommandLine, files: Path, tmp_path: Path
    ) -> None:
        """
        `--output` of a link to /dev/null leaves the device as it is.
        """
        (tmp_path / "null").symlink_to("/dev/null")
        suture("put", str(files / "file0"), "--prefix", "device/")

        suture("get", "device/file0", "--output", str(tmp_path / "null"))

        assert (tmp_path / "null").is_char_device()

    def test_output_named_by_a_dash_is_stdout(
        self, suture: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As with cat, tar and curl, no file named - is created."""
        (tmp_path / "text").write_text("one line\n")
        monkeypatch.chdir(tmp_path)
        suture("put", "text", "--prefix", "dash/")

        assert "one line\n" == suture("get", "dash/text", "--output", "-")
        assert ["text"] == [path.name for path in tmp_path.iterdir()]

    def test_a_datanode_is_named_by_the_beginning_of_its_id(
        self, suture: CommandLine, files: Path, tmp_path: Path
    ) -> None:
        """The prefix that the tables show is enough. An id without a replica is refused."""
        stored = suture.json("put", str(files / "file0"), "--prefix", "chosen/")
        container = suture.wait_until_reported(stored["container_ids"][0])
        shown = container["replicas"][0]["datanode"]["datanode_id"][:8]
        chosen = ("get", "chosen/file0", "--output", str(tmp_path / "back"), "--datanode")

        answer = suture.json(*chosen, shown)
        refused = suture.json(*chosen, "zz", code=ExitCode.FAILED)

        assert FILE_BYTES == answer["bytes"] == (tmp_path / "back").stat().st_size
        assert "WRONG_DATANODE" == refused["error"]["code"]


class TestOrders:
    def test_an_order_is_shown_and_given_only_while_the_world_is_the_same(
        self, suture: CommandLine, files: Path, tmp_path: Path
    ) -> None:
        """
        A dry run changes nothing; what it showed closes the container once, and never again.
        """
        stored = suture.json("put", str(files / "file0"), "--prefix", "shown/")
        container_id = str(stored["container_ids"][0])
        suture.wait_until_reported(int(container_id))
        shown = suture.json("scm", "close", container_id, "--dry-run")["decisions"]
        before = suture.json("scm", "containers", container_id)["state"]
        (tmp_path / "shown").write_text(json.dumps({"schema": 1, "decisions": shown}))
        close = ("scm", "close", container_id, "--expect", str(tmp_path / "shown"))

        given = suture.json(*close)["decisions"]
        suture.wait_until_closed([int(container_id)])
        late = suture.json(*close, code=ExitCode.FAILED)["decisions"]

        assert "OPEN" == before
        assert 3 == len(shown[0]["orders"]) == len(given[0]["command_ids"])
        assert {"close"} == {order["type"] for order in shown[0]["orders"]}
        assert ["STALE_PLAN"] == [decision["code"] for decision in late]

    def test_a_reconcile_is_shown_before_it_is_given(
        self, suture: CommandLine, files: Path, tmp_path: Path
    ) -> None:
        """
        The dry run names who reconciles, with bytes and copies; what it showed can be given.
        """
        [container_id] = store(suture, files, "reconciled/")
        shown = suture.json("reconcile", str(container_id), "--dry-run")["decisions"]
        (tmp_path / "shown").write_text(json.dumps({"schema": 1, "decisions": shown}))

        given = suture.json("reconcile", str(container_id), "--expect", str(tmp_path / "shown"))

        assert (3, 3) == (shown[0]["copies_before"], shown[0]["copies_after"])
        assert all(order["bytes"] > 0 for order in shown[0]["orders"])
        assert {"nothing_to_do"} == {
            outcome["status"]["reconcile"]["result"] for outcome in given["outcomes"]
        }

    def test_shown_file_that_is_no_dry_run_output_is_refused(
        self, suture: CommandLine, tmp_path: Path
    ) -> None:
        """A file that no dry run printed, or one about other containers, sends no command."""
        decision = {"container_id": 1, "world": 1}
        documents: list[object] = [{}, [], [decision], {"schema": 1, "decisions": [{}]}]
        documents.append({"schema": 2, "decisions": [decision]})
        for text in ("no JSON", *map(json.dumps, documents)):
            (tmp_path / "shown").write_text(text)

            answer = suture.json(
                "scm", "close", "1", "--expect", str(tmp_path / "shown"), code=ExitCode.FAILED
            )

            assert "MALFORMED_REQUEST" == answer["error"]["code"]


class TestReplicas:
    def test_equal_replicas_have_nothing_to_differ_in(
        self, suture: CommandLine, files: Path
    ) -> None:
        """
        After a close all replicas have one root: tree, diff, explain and status agree on it.
        """
        [container_id] = store(suture, files, "equal/")

        trees = suture.json("tree", str(container_id))["replicas"]
        comparisons = suture.json("diff", str(container_id))["comparisons"]
        explained = suture.json("explain", str(container_id))
        assert explained["keys"]["key_count"] == len(explained["keys"]["keys"]) > 0

        assert 1 == len({tree["root"] for tree in trees})
        assert 3 == len(trees)
        assert {"EQUAL"} == {pair["verdict"] for pair in comparisons}
        assert [] == [f for found in explained["findings"].values() for f in found]

    def test_damage_is_found_explained_and_healed(
        self, cluster: Cluster, suture: CommandLine, files: Path
    ) -> None:
        """Three replicas are damaged differently. Scan finds the damage, explain lists it, and
        reconcile repairs it.
        """
        [container_id] = store(suture, files, "damaged/")
        flip_bit_under_warm_cache(target(cluster, 0, container_id, 1))
        zero_page(target(cluster, 1, container_id, 2))
        append_garbage(target(cluster, 2, container_id, 3))

        results = suture.json("scrub", "scan", str(container_id), "--wait", code=ExitCode.TO_DO)[
            "datanodes"
        ]
        differences = suture.json("diff", str(container_id), code=ExitCode.TO_DO)["comparisons"]
        explained = suture.json("explain", str(container_id), code=ExitCode.TO_DO)
        suture.json("status", code=ExitCode.TO_DO)
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
        assert 0 == sum(
            r["finding_count"]
            for r in suture.json("scrub", "scan", str(container_id), "--wait")["datanodes"].values()
        )
        suture.wait_until_closed([container_id])

    def test_tables_are_for_people(self, suture: CommandLine, files: Path) -> None:
        """
        Without --json the same commands print tables with what a person looks for.
        """
        [container_id] = store(suture, files, "people/")

        assert "3 CLOSED" not in suture("scm", "nodes")
        assert "CLOSED" in suture("scm", "containers", str(container_id))
        assert "root" in suture("tree", str(container_id), "--chunks")
        assert "EQUAL" in suture("diff", str(container_id))
        assert "nothing is wrong here" in suture("explain", str(container_id))
        assert "equal and whole on all replicas" in suture.status_when_well()
        assert "people/files/file0" in suture("ls", "people/")

    def test_an_unknown_datanode_is_refused_and_never_equal(
        self, suture: CommandLine, files: Path
    ) -> None:
        """
        A mistyped datanode id compares and scans nothing, and does not end as if all were well.
        """
        [container_id] = store(suture, files, "mistyped/")

        for command in (("tree",), ("diff",), ("scrub", "scan")):
            chosen = (*command, str(container_id), "--datanode", "zz")
            assert "CONTAINER_NOT_FOUND" == suture.json(*chosen, code=1)["error"]["code"]

    def test_a_container_being_written_is_unknown_but_not_wrong(
        self, suture: CommandLine, files: Path
    ) -> None:
        """
        Without trees replicas compare as UNKNOWN, with the reason apart; nothing is wrong yet.
        """
        [container_id] = suture.json("put", str(files / "file1"), "--prefix", "open/")[
            "container_ids"
        ]
        suture.wait_until_reported(container_id)

        comparisons = suture.json("diff", str(container_id), code=ExitCode.TO_DO)["comparisons"]

        assert {"UNKNOWN"} == {pair["verdict"] for pair in comparisons}
        assert all("OPEN" in pair["error"] for pair in comparisons)
        suture("explain", str(container_id))

    def test_a_narrow_terminal_gets_tables_below_each_other(
        self, suture: CommandLine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        At 80 columns no cell is broken in the middle: a wide table comes in parts, each with the
        datanode in front.
        """
        node = suture.json("scm", "nodes")["nodes"][0]
        wide = suture.status_when_well()
        monkeypatch.setattr(people, "_width", 80)

        narrow = suture("status")

        assert 1 == wide.count(node["datanode_id"][:8])
        assert 1 < narrow.count(node["datanode_id"][:8])
        assert node["address"] in narrow

    def test_an_unknown_container_is_refused(self, suture: CommandLine) -> None:
        """Every command that takes a container id refuses an unknown one."""
        for command in (("tree",), ("diff",), ("explain",), ("scrub", "scan")):
            answer = suture.json(*command, "999999", code=ExitCode.FAILED)
            assert "CONTAINER_NOT_FOUND" == answer["error"]["code"]
        [decision] = suture.json("reconcile", "999999", code=ExitCode.FAILED)["decisions"]
        assert "CONTAINER_NOT_FOUND" == decision["code"]
