"""`suture://` in fsspec, pandas and pyarrow, against a cluster."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pandas as pd
import pyarrow.dataset as pads
import pytest
from fsspec.tests import abstract

from suture import KeyReplaced, UnavailableError
from suture.client import filesystem
from suture.client.filesystem import SutureFileSystem
from tools.demo.cluster import Cluster

FRAME = pd.DataFrame({"host": ["a", "b", "a"], "errors": [1, 2, 3]})


@pytest.fixture
def fs(cluster: Cluster) -> Iterator[SutureFileSystem]:
    """The file system of the module's cluster; its keys are deleted afterwards."""
    opened = SutureFileSystem(cluster.scm.address)
    yield opened
    for key in opened.find(""):
        opened.rm_file(key)


class Fixtures(abstract.AbstractFixtures):  # type: ignore[misc]
    """The fixtures of fsspec's own tests."""

    @pytest.fixture
    def fs(self, fs: SutureFileSystem) -> SutureFileSystem:
        return fs

    @pytest.fixture
    def fs_path(self) -> str:
        return "tests"

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestCopy(Fixtures, abstract.AbstractCopyTests):  # type: ignore[misc]
    """fsspec's tests of copies within a file system."""

    test_copy_glob_edge_cases = None  # they test fsspec's expansion of patterns


class TestGet(Fixtures, abstract.AbstractGetTests):  # type: ignore[misc]
    """fsspec's tests of copies to the local disk."""

    test_get_glob_edge_cases = None  # they test fsspec's expansion of patterns


class TestPut(Fixtures, abstract.AbstractPutTests):  # type: ignore[misc]
    """fsspec's tests of copies from the local disk."""

    test_put_glob_edge_cases = None  # they test fsspec's expansion of patterns


class TestOpen(Fixtures, abstract.AbstractOpenTests):  # type: ignore[misc]
    """fsspec's tests of exclusive writes."""


class TestPipe(Fixtures, abstract.AbstractPipeTests):  # type: ignore[misc]
    """fsspec's tests of writes of bytes."""


def test_pandas_and_pyarrow_read_what_pandas_wrote(cluster: Cluster, fs: SutureFileSystem) -> None:
    """The address names the control plane. pyarrow finds the files of a directory."""
    url = f"suture://{cluster.scm.address}/tables"
    FRAME.to_parquet(f"{url}/one.parquet")
    FRAME.to_csv(f"{url}/one.csv", index=False)

    assert FRAME.equals(pd.read_csv(f"{url}/one.csv"))
    assert FRAME.equals(pd.read_parquet(f"{url}/one.parquet", columns=["host", "errors"]))
    dataset = pads.dataset("tables", filesystem=fs, exclude_invalid_files=True)
    assert FRAME.equals(dataset.to_table().to_pandas())
    assert [f"{url}/one.csv", f"{url}/one.parquet"] == [
        fs.unstrip_protocol(name) for name in fs.ls(url, detail=False)
    ]


def test_ls_does_not_list_the_keys_of_subdirectories(
    fs: SutureFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pages of two keys, a directory of twenty keys costs two requests."""
    fs.client.put_many({f"many/{number:02}": b"" for number in range(20)})
    fs.client.put_many({"after": b"1", "many": b"22", "many0": b"333"})
    monkeypatch.setattr(filesystem, "KEYS_PER_PAGE", 2)
    scm = fs.client._cluster.scm
    calls = []
    asked = scm.list_keys
    monkeypatch.setattr(scm, "list_keys", lambda request: calls.append(1) or asked(request))

    found = [(one["name"], one["size"], one["type"]) for one in fs.ls("")]

    files = [("after", 1, "file"), ("many", 2, "file"), ("many0", 3, "file")]
    assert sorted([*files, ("many", 0, "directory")]) == sorted(found)
    assert 4 >= len(calls)


def test_failed_write_stores_nothing(fs: SutureFileSystem) -> None:
    """An exception in the `with` block discards the data; also fsspec's transactions do."""

    def write() -> None:
        with fs.open("torn", "wb") as file:
            file.write(b"a half")
            raise RuntimeError

    def write_in_transaction() -> None:
        with fs.transaction:
            write()

    for one in (write, write_in_transaction):
        with pytest.raises(RuntimeError):
            one()

    assert not fs.exists("torn")


def test_open_file_is_of_one_version(fs: SutureFileSystem) -> None:
    """After a key was replaced, a file that was opened before does not mix both versions."""
    fs.pipe_file("versions", bytes(3_000_000))

    with fs.open("versions", block_size=1_000_000, cache_type="none") as file:
        assert bytes(1_000_000) == file.read(1_000_000)
        fs.pipe_file("versions", b"1" * 3_000_000)
        try:
            read = file.read()
        except KeyReplaced:
            read = bytes(2_000_000)

    assert bytes(2_000_000) == read


def test_unreachable_control_plane_is_an_error(tmp_path: Path) -> None:
    """`exists` does not say that a file is missing if nobody answers."""
    fs = fsspec.filesystem("suture", scm="127.0.0.1:1")

    with pytest.raises(UnavailableError):
        fs.exists("some")
    with pytest.raises(FileNotFoundError):
        fs.put_file(str(tmp_path / "none"), "some")
