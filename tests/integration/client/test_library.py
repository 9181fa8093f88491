"""What others import, against a cluster: `suture.Client` and `suture.AsyncClient`."""

import asyncio
import io
import os
import random
import re
from collections.abc import Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from suture import AsyncClient, Client, Code, KeyExists, KeyNotFound, UnavailableError
from suture.client import key_listing
from suture.client.writer import WriterSession
from tests.support.forked_cluster import forked_cluster
from tools.demo.cluster import Cluster

ROOT = Path(__file__).resolve().parents[3]
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCK_BYTES = 100_000
SIZE_BYTES = 2 * BLOCK_BYTES + 12_345
BORDERS = (0, 1, 65_535, 65_536, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES)


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """A client of the shared cluster."""
    with Client(cluster.scm.address) as opened:
        yield opened


@pytest.fixture(scope="module")
def brittle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of our own: what is damaged there nobody else meets."""
    with forked_cluster(
        tmp_path_factory.mktemp("brittle"),
    ) as running:
        yield running


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have files become blocks of a hundred kilobytes."""
    monkeypatch.setattr(WriterSession, "block_bytes", BLOCK_BYTES)


def noise(size_bytes: int, seed: int = 1) -> bytes:
    """Return bytes of which no two runs are alike."""
    return random.Random(seed).randbytes(size_bytes)


class TestStoring:
    """What goes in comes out."""

    @pytest.mark.parametrize("size_bytes", [0, 1, 70_000, 5 * 1024**2])
    @pytest.mark.usefixtures("small_blocks")
    def test_whatever_it_is_given_as(self, client: Client, tmp_path: Path, size_bytes: int) -> None:
        """
        Bytes, a view, a path, a file, a pipe; empty and longer than is kept in memory.
        """
        content = noise(size_bytes)
        path = tmp_path / "content"
        path.write_bytes(content)
        name = f"given/{size_bytes}"
        client.put_many({f"{name}/bytes": content, f"{name}/view": memoryview(content)})
        client.put(f"{name}/path", path)
        client.put(f"{name}/file", io.BytesIO(b"before" + content[:0]))
        with path.open("rb") as file:
            client.put(f"{name}/file", file, replace=True)
        with os.popen(f"cat {path}") as pipe:  # noqa: S605 - a pipe, of which nobody knows the size
            client.put(f"{name}/pipe", pipe.buffer)

        found = [client.get(f"{name}/{one}") for one in ("bytes", "view", "path", "file", "pipe")]

        assert [content] * 5 == found

    def test_a_key_that_exists_is_replaced_only_when_told(self, client: Client) -> None:
        """
        Until then the old one is there.
        """
        client.put("once", b"old")
        with pytest.raises(KeyExists) as caught:
            client.put("once", b"new")
        before = client.get("once")
        client.put("once", b"new", replace=True)

        assert Code.KEY_EXISTS == caught.value.code
        assert b"old" == before
        assert b"new" == client.get("once")

    def test_exception_in_progress_callback_aborts_the_put(self, client: Client) -> None:
        """Nothing is stored."""

        def stop(_: int) -> None:
            raise LookupError

        with pytest.raises(LookupError):
            client.put("stopped", noise(3 * 1024**2), progress=stop)
        with pytest.raises(KeyNotFound):
            client.info("stopped")


class TestReading:
    """Parts, pieces and files."""

    @pytest.mark.usefixtures("small_blocks")
    @pytest.mark.parametrize("replication", ["", "xor-2-1-16k"])
    def test_any_range_is_what_a_slice_is(self, client: Client, replication: str) -> None:
        """
        Around the borders of blocks, stripes and windows, and beyond the end.
        """
        content = noise(SIZE_BYTES)
        name = f"ranges/{replication or 'copies'}"
        client.put(name, content, replication=replication)
        drawn = random.Random(7)
        ranges = [(start, None) for start in (*BORDERS, SIZE_BYTES, SIZE_BYTES + 5)]
        ranges += [(0, stop) for stop in (*BORDERS, SIZE_BYTES, SIZE_BYTES + 5)]
        ends = [sorted(drawn.randrange(SIZE_BYTES + 9) for _ in range(2)) for _ in range(25)]

        wrong = [
            (start, stop)
            for start, stop in [*ranges, *map(tuple, ends)]
            if client.get(name, start=start, stop=stop) != content[start:stop]
        ]

        assert [] == wrong

    @pytest.mark.usefixtures("small_blocks")
    def test_blocks_outside_a_range_are_not_read(self, brittle: Cluster) -> None:
        """A lost block does not prevent reads of other blocks."""
        content = noise(SIZE_BYTES, seed=2)
        with Client(brittle.scm.address) as client:
            client.put("partly", content)
            for index in range(3):
                assert spoil(brittle.volume_paths(index), content[5_000:5_050])

            assert content[BLOCK_BYTES:] == client.get("partly", start=BLOCK_BYTES)
            with pytest.raises(UnavailableError):
                client.get("partly", stop=10_000)

    def test_damage_is_read_around(self, brittle: Cluster) -> None:
        """Two of three replicas have a flipped bit, and the caller gets no error."""
        content = noise(300_000, seed=3)
        with Client(brittle.scm.address) as client:
            client.put("damaged", content)
            for index in (0, 1):
                assert spoil(brittle.volume_paths(index), content[150_000:150_050])

            assert content == client.get("damaged")
            assert content[149_000:151_000] == client.get("damaged", start=149_000, stop=151_000)

    def test_a_file_is_downloaded_whole_or_stays_as_it_was(
        self, brittle: Cluster, tmp_path: Path
    ) -> None:
        """
        Nothing is left beside it.
        """
        content = noise(300_000, seed=4)
        with Client(brittle.scm.address) as client:
            client.put("fetched", content)
            path = tmp_path / "fetched"
            heard: list[int] = []
            client.download("fetched", path, progress=heard.append)
            for index in range(3):
                assert spoil(brittle.volume_paths(index), content[250_000:250_050])

            with pytest.raises(UnavailableError):
                client.download("fetched", path)

            assert content == path.read_bytes()
            assert len(content) == sum(heard)
            assert [path] == list(tmp_path.iterdir())

    def test_a_missing_key_is_named(self, client: Client, tmp_path: Path) -> None:
        """
        By every method, and when it is called.
        """
        for call in (client.get, client.stream, client.info, client.delete):
            with pytest.raises(KeyNotFound, match="no/such"):
                call("no/such")
        with pytest.raises(KeyNotFound, match="no/such"):
            client.download("no/such", tmp_path / "file")
        assert [] == list(tmp_path.iterdir())

    def test_keys_are_listed_page_by_page(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        Each once, by name, with size and time.
        """
        monkeypatch.setattr(key_listing, "KEYS_PER_PAGE", 3)
        names = [f"listed/{number:02}" for number in range(10)]
        client.put_many({name: b"x" * place for place, name in enumerate(names)})
        client.delete("listed/04")

        listed = list(client.list("listed/"))

        assert [name for name in names if name != "listed/04"] == [one.key for one in listed]
        assert [0, 1, 2, 3, 5, 6, 7, 8, 9] == [one.size_bytes for one in listed]
        assert listed[0] == client.info("listed/00")
        assert abs(datetime.now(UTC) - listed[0].created_at) < timedelta(minutes=10)
        assert [3, 3, 3] == [len(page) for page in client.pages("listed/")]


class TestAsync:
    """The same, awaited."""

    def test_round_trips_at_the_same_time(self, cluster: Cluster, tmp_path: Path) -> None:
        """
        Many tasks of one client, copies and codes; what they read is theirs.
        """

        async def trip(client: AsyncClient, number: int) -> bool:
            content, name = noise(200_000 + number, number), f"async/{number:02}"
            scheme = "xor-2-1-16k" if number % 2 else ""
            await client.put(name, content, replication=scheme)
            pieces = [piece async for piece in client.stream(name)]
            path = tmp_path / str(number)
            await client.download(name, path)
            part = await client.get(name, start=10, stop=20)
            return [content, content, content[10:20]] == [b"".join(pieces), path.read_bytes(), part]

        async def trips() -> list[bool]:
            async with AsyncClient(cluster.scm.address) as client:
                kept = await asyncio.gather(*(trip(client, number) for number in range(12)))
                names = [info.key async for info in client.list("async/")]
                assert [f"async/{number:02}" for number in range(12)] == names
                await client.delete("async/00")
                with pytest.raises(KeyNotFound):
                    await client.info("async/00")
                return kept

        assert [True] * 12 == asyncio.run(trips())

    def test_a_reader_that_leaves_early_leaves_the_client_usable(self, cluster: Cluster) -> None:
        """
        By a break, and by a task that is cancelled in the middle.
        """
        content = noise(3 * 1024**2, seed=5)

        async def scenario() -> bytes:
            async with AsyncClient(cluster.scm.address) as client:
                await client.put("left", content)
                async with aclosing(client.stream("left")) as pieces:
                    async for _ in pieces:
                        break
                begun = asyncio.Event()

                async def read() -> None:
                    async for _ in client.stream("left"):
                        begun.set()
                        await asyncio.Event().wait()

                task = asyncio.create_task(read())
                await begun.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                return await client.get("left")

        assert content == asyncio.run(scenario())


@pytest.mark.usefixtures("small_blocks")
def test_the_document_is_true(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its examples run one after the other, in one directory.
    """
    blocks = PYTHON_BLOCK.findall((ROOT / "docs" / "CLIENT.md").read_text())
    monkeypatch.chdir(tmp_path)
    known: dict[str, object] = {}

    for block in blocks:
        exec(block.replace("scm1:9860", cluster.scm.address), known)  # noqa: S102 - our own text

    assert 5 == len(blocks)
    assert bytes(5_000_000) == (tmp_path / "restored.tar").read_bytes()


def spoil(volumes: list[Path], wanted: bytes) -> bool:
    """Flip a bit where these bytes are on the volumes of a datanode; whether they were found."""
    for path in (path for volume in volumes for path in volume.rglob("*") if path.is_file()):
        whole = path.read_bytes()
        at = whole.find(wanted)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([wanted[0] ^ 1]))
            return True
    return False
