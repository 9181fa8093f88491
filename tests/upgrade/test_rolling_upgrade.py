"""A cluster that is upgraded from the newest release host by host, and rolled back, under load."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from suture import Client, KeyExists, UnavailableError
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until
from tests.upgrade.conftest import InstalledVersion
from tools.demo.cluster import Cluster, Launch

T = TypeVar("T")

pytestmark = [pytest.mark.fault, pytest.mark.slow]

FILE_BYTES = 100_000
FILES_PER_STEP = 3
RETRY_S = 0.1
REPAIR_S = 120.0  # each restart left containers that miss a replica, or blocks of one
LOAD_S = 120.0  # a put waits this long for a control plane that restarts


class Load:
    """A client that stores files, and reads an earlier file after each, until it is stopped.

    `stored` has the acknowledged files. A call that fails while the control plane restarts is
    repeated, and `refusals` has its error.
    """

    def __init__(self, client: Client) -> None:
        self.stored: dict[str, bytes] = {}
        self.refusals: list[str] = []
        self._client = client
        self._is_stopped = threading.Event()

    def run(self) -> None:
        """Store and read until `stop` is called. Raise SutureError if a replica cannot be read."""
        while not self._is_stopped.is_set():
            key, content = f"file{len(self.stored)}", os.urandom(FILE_BYTES)
            self._repeat(partial(self._put, key, content))
            self.stored[key] = content
            earlier = f"file{len(self.stored) // 2}"
            assert self._repeat(partial(self._client.get, earlier)) == self.stored[earlier]

    def stop(self) -> None:
        """End `run` after its current file."""
        self._is_stopped.set()

    def _repeat(self, call: Callable[[], T]) -> T:
        """Return the result of a call, which is repeated until `stop` while the SCM is away."""
        while True:
            try:
                return call()
            except UnavailableError as error:
                if self._is_stopped.is_set():
                    raise
                self.refusals.append(f"{error.code}: {error}")
                self._is_stopped.wait(RETRY_S)

    def _put(self, key: str, content: bytes) -> None:
        try:
            self._client.put(key, content)
        except KeyExists:  # stored by the attempt before, whose answer was lost
            assert self._client.get(key) == content


@contextmanager
def loaded(client: Client) -> Iterator[Load]:
    """Run a load in another thread; its error is raised at the end."""
    load = Load(client)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(load.run)
        try:
            yield load
        finally:
            load.stop()
            running.result(LOAD_S)


def roll(cluster: Cluster, launch: Launch, load: Load) -> None:
    """Restart the agents one after the other, then the control plane, as another version. The load
    stores files between two restarts, and does not notice those of the agents."""
    before = list(load.refusals)
    for index, node in enumerate(cluster.nodes):
        assert node.stop() == 0
        node.launch = launch
        cluster.start_again(index)
        wait_for_files(load)
    assert load.refusals == before
    assert cluster.scm.stop() == 0
    cluster.scm.launch = launch
    cluster.scm.arguments = cluster.scm_arguments(cluster.scm.address)
    cluster.scm.start()
    wait_for_files(load)


def wait_for_files(load: Load) -> None:
    """Wait until the load has stored more files."""
    wanted = len(load.stored) + FILES_PER_STEP
    wait_until(lambda: len(load.stored) >= wanted, within_s=LOAD_S)


def test_cluster_serves_while_it_is_upgraded_and_rolled_back(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    released: InstalledVersion,
    checkout: InstalledVersion,
) -> None:
    """Files are stored between all restarts, every read succeeds, and at the end each datanode
    has the version that it was rolled to, and every acknowledged file is there."""
    with (
        Cluster(tmp_path / "c", agents=4, volumes=1, launch=released.launch) as cluster,
        Client(cluster.scm.address) as client,
    ):
        suture = CommandLine(cluster.scm.address, capsys)

        def has_version(expected: str) -> bool:
            programs = suture.json_any("versions")["programs"]
            servers = [one for one in programs if one["program"] != "suture"]
            assert len(servers) == 5
            return {(expected, "")} == {(one["version"], one["error"]) for one in servers}

        wait_until(lambda: has_version(released.version))
        with loaded(client) as load:
            wait_for_files(load)
            for version in (checkout, released):
                roll(cluster, version.launch, load)
                wait_until(partial(has_version, version.version))
        for key, content in load.stored.items():
            assert client.get(key) == content
        suture.status_when_well(within_s=REPAIR_S)
