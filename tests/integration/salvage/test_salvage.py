"""`suture salvage`: every file off the volumes alone, verified, and nothing written to them."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli.main import run
from agent.salvage.safe_paths import paths_of
from agent.salvage.salvage import SalvageSummary, salvage
from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import SourceFile
from suture.client.writer import WriterSession
from suture.ec.scheme import parse_scheme
from suture.errors import Code, RefusedError
from tests.support.nursery import forked
from tests.support.printed_json import document_in
from tools.demo.cluster import Cluster

AGENTS = 5
PART_BYTES = 40_000  # so that a file of a few of these has several blocks
SECTIONS = "[scan]\nenabled = false\nwatch = false\n"
CODED = parse_scheme("rs-3-2-16k")
PLAIN = {
    "small": 100,
    "empty": 0,
    "large": 5 * PART_BYTES + 17,
    "dir": 10,
    "dir/file": 20,
    "DIR/file": 30,
    "../../escape": 40,
    "/absolute": 50,
    "l" * 900: 60,
}
GROUPS = {"coded/small": 1_000, "coded/large": 300_000}


def content(key: str, size_bytes: int) -> bytes:
    """Return what is stored under a key."""
    return hashlib.shake_128(key.encode()).digest(size_bytes)


def write_all(cluster: Cluster, folder: Path) -> None:
    """Store all keys, some of them twice; close what was written."""
    with ClusterClient(cluster.scm.address) as client:
        for keys, scheme in ((PLAIN, None), (GROUPS, CODED)):
            sources = []
            for number, (key, size_bytes) in enumerate(keys.items()):
                path = folder / f"{scheme}{number}"
                path.write_bytes(content(key, size_bytes))
                sources.append(SourceFile(key, path, size_bytes))
            client.put(sources, lanes=2, scheme=scheme, close=True)
        path = folder / "again"
        path.write_bytes(b"the newer one")
        client.put([SourceFile("small", path, 13)], replace=True, lanes=1)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The volumes of five stopped agents, and of one control plane that is lost."""
    root = tmp_path_factory.mktemp("salvage")
    whole_bytes = WriterSession.block_bytes
    WriterSession.block_bytes = PART_BYTES
    try:
        with Cluster(
            root / "c", agents=AGENTS, volumes=1, agent_sections=SECTIONS, launch=forked
        ) as cluster:
            write_all(cluster, root)
            assert Code.VOLUME_IN_USE == refusal(volumes(root), root / "in-use")
    finally:
        WriterSession.block_bytes = whole_bytes
    shutil.rmtree(root / "c" / "scm")
    yield root
    shutil.rmtree(root)


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    """A copy of them, to be damaged."""
    shutil.copytree(original, tmp_path / "copy", symlinks=True)
    return tmp_path / "copy"


def volumes(root: Path, *numbers: int) -> list[Path]:
    """Return the volumes of these agents, or of all."""
    return [root / "c" / f"datanode{n}" / "vol1" for n in numbers or range(1, AGENTS + 1)]


def refusal(paths: list[Path], to: Path) -> Code:
    """Return why a salvage is refused."""
    with pytest.raises(RefusedError) as caught:
        salvage(paths, to)
    return caught.value.code


def facts(path: Path) -> dict[str, tuple[int, int, int, str]]:
    """Return mode, size, time of change and checksum of everything below a directory."""
    found = {}
    for one in [path, *path.rglob("*")]:
        of = one.lstat()
        data = one.read_bytes() if one.is_file() else b""
        digest = hashlib.sha256(data).hexdigest()
        found[str(one)] = (of.st_mode, of.st_size, of.st_mtime_ns, digest)
    return found


def wrong(to: Path, *, without: tuple[str, ...] = ()) -> list[str]:
    """Return the keys that are not below the directory as they were stored."""
    expected = {key: content(key, size) for key, size in (PLAIN | GROUPS).items()}
    expected["small"] = b"the newer one"
    paths = paths_of(expected)
    return [
        key
        for key, data in expected.items()
        if key not in without
        and (
            not (to / "keys" / paths[key]).is_file()
            or data != (to / "keys" / paths[key]).read_bytes()
        )
    ]


def block_files(root: Path, size_bytes: int) -> list[Path]:
    """Return block files of a size, on all volumes."""
    return sorted(p for p in (root / "c").rglob("*.block") if p.stat().st_size == size_bytes)


def spoil(path: Path, at: int) -> None:
    """Flip a bit."""
    octets = bytearray(path.read_bytes())
    octets[at] ^= 1
    path.write_bytes(octets)


def test_every_key_is_written_and_nothing_else_is(original: Path, tmp_path: Path) -> None:
    """
    Byte by byte, by key; not a bit, a mode or a time of the volumes changes, and all lands inside.
    """
    before = facts(original / "c")

    summary = salvage(volumes(original), tmp_path / "out")

    assert summary.is_whole, summary
    assert [] == wrong(tmp_path / "out")
    assert before == facts(original / "c")
    assert ["out"] == [path.name for path in tmp_path.iterdir()]
    lines = map(json.loads, (tmp_path / "out" / "files.jsonl").read_text().splitlines())
    assert set(PLAIN | GROUPS) == {line["key"] for line in lines}


def test_some_of_the_volumes_are_enough(root: Path, tmp_path: Path) -> None:
    """
    Any three of the five: groups are computed out of the shards that are left.
    """
    for number, lost in enumerate([(1, 2), (2, 5), (3, 4)]):
        left = [n for n in range(1, AGENTS + 1) if n not in lost]
        summary = salvage(volumes(root, *left), tmp_path / f"out{number}")

        assert [] == wrong(tmp_path / f"out{number}"), (lost, summary.incomplete_files)


def test_replicas_with_different_damage_make_one_whole_file(root: Path, tmp_path: Path) -> None:
    """
    Each replica of a block is damaged somewhere, in no place all of them.
    """
    coded = [p for p in (root / "c").rglob("*.block") if p.stat().st_size > 2 * PART_BYTES]
    for number, path in enumerate(coded[:2]):
        spoil(path, number)
    by_name: dict[str, list[Path]] = {}
    for path in block_files(root, PART_BYTES):
        by_name.setdefault(path.name, []).append(path)
    for copies in by_name.values():
        for path in copies[:-1]:
            spoil(path, 5)

    summary = salvage(volumes(root), tmp_path / "out")

    assert summary.is_whole, summary.incomplete_files
    assert [] == wrong(tmp_path / "out")


def test_unreadable_file_is_named_and_not_written(root: Path, tmp_path: Path) -> None:
    """With the partial option it is written beside the others with zeros. All other files are
    written.
    """
    before = {path.name for path in block_files(root, PART_BYTES)}
    name = sorted(before)[0]
    for path in block_files(root, PART_BYTES):
        if path.name == name:
            spoil(path, 7)

    summary = salvage(volumes(root), tmp_path / "out")

    (lack,) = summary.incomplete_files
    assert "large" == lack.key
    assert f"block {name.removesuffix('.block')}, " in lack.missing_parts[0]
    assert "no replica has bytes that fit" in lack.missing_parts[0]
    assert [] == wrong(tmp_path / "out", without=("large",))
    assert not (tmp_path / "out" / "keys" / "large").exists()
    assert not (tmp_path / "out" / "partial").exists()

    again = salvage(volumes(root), tmp_path / "out", is_partial=True)
    assert ["partial/keys/large"] == [one.partial_path for one in again.incomplete_files]
    written = (tmp_path / "out" / "partial" / "keys" / "large").read_bytes()
    whole = content("large", PLAIN["large"])
    assert len(whole) == len(written)
    assert 4 == sum(
        whole[at : at + PART_BYTES] == written[at : at + PART_BYTES]
        for at in range(0, 5 * PART_BYTES, PART_BYTES)
    )


def test_salvage_continues_where_it_stopped(root: Path, tmp_path: Path) -> None:
    """Files that are there and verify are kept, and others are written again."""
    first = salvage(volumes(root), tmp_path / "out")
    spoil(tmp_path / "out" / "keys" / "large", 11)
    (tmp_path / "out" / "keys" / "DIR" / "file").unlink()
    kept = (tmp_path / "out" / "keys" / "coded" / "large").stat().st_mtime_ns

    second = salvage(volumes(root), tmp_path / "out")

    assert (0, 2) == (first.kept_count, second.written_count)
    assert first.written_count == second.written_count + second.kept_count
    assert [] == wrong(tmp_path / "out")
    assert kept == (tmp_path / "out" / "keys" / "coded" / "large").stat().st_mtime_ns


def test_a_volume_without_its_index_is_named(root: Path, tmp_path: Path) -> None:
    """
    The others are read; what only it had is not whole.
    """
    (data,) = volumes(root, 1)[0].rglob("data.mdb")
    data.write_bytes(b"no index" * 1_000)

    summary = salvage(volumes(root), tmp_path / "out")

    assert [str(volumes(root, 1)[0])] == list(summary.unreadable_volumes)
    assert not summary.is_whole
    assert [] == wrong(tmp_path / "out")


class TestRefusals:
    def test_a_directory_on_a_volume(self, root: Path) -> None:
        """
        Nothing is ever written to one.
        """
        assert Code.INVALID_CONFIG == refusal(volumes(root), volumes(root)[0] / "out")

    def test_a_directory_with_something_else_in_it(self, root: Path, tmp_path: Path) -> None:
        """The directory is refused and stays as it is."""
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine").write_text("mine")

        assert Code.INVALID_CONFIG == refusal(volumes(root), tmp_path / "out")
        assert ["mine"] == [path.name for path in (tmp_path / "out").iterdir()]

    def test_a_link_that_leads_out(self, root: Path, tmp_path: Path) -> None:
        """A link took the place of a folder, and nothing is written through it."""
        salvage(volumes(root, 1), tmp_path / "out")
        shutil.rmtree(tmp_path / "out" / "keys")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "out" / "keys").symlink_to(tmp_path / "elsewhere")

        assert Code.INVALID_CONFIG == refusal(volumes(root), tmp_path / "out")
        assert [] == list((tmp_path / "elsewhere").iterdir())

    def test_files_of_another_cluster(self, root: Path, tmp_path: Path) -> None:
        """Their ids would be the same."""
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "salvage.json").write_text('{"cluster_id": "CID-other"}')

        assert Code.WRONG_CLUSTER == refusal(volumes(root), tmp_path / "out")

    def test_no_volume(self, tmp_path: Path) -> None:
        """
        A directory that is none.
        """
        (tmp_path / "volume").mkdir()

        assert Code.INCONSISTENT_VOLUME == refusal([tmp_path / "volume"], tmp_path / "out")


def test_the_command_line(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints what it wrote, and exits with 2 if a file is not whole."""
    words = ["salvage", *map(str, volumes(root)), "--to", str(tmp_path / "out")]
    assert 0 == run(words)
    said = capsys.readouterr().out
    assert "files written" in said
    for path in block_files(root, PART_BYTES):
        path.unlink()
    (tmp_path / "out" / "keys" / "large").unlink()

    assert 2 == run([*words, "--json"])
    document = document_in(capsys.readouterr().out, "salvage")
    assert ["large"] == [lack["key"] for lack in document["incomplete_files"]]
    assert {"schema", *SalvageSummary.__slots__} == set(document)
