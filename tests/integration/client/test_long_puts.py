"""A key that takes longer to store than a session may be silent, and more than one container."""

import time
from pathlib import Path
from random import Random

import pytest

from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import SourceFile
from suture.client.writer import WriterSession
from tests.support.forked_cluster import forked_cluster
from tests.support.waiting import wait_until

IDLE_MS = 600
CONTAINER_BYTES = 1024**2


def test_a_key_is_stored_however_long_its_bytes_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its first containers are full when the first byte is written; all are kept open until the last.
    """
    monkeypatch.setattr(WriterSession, "block_bytes", 256 * 1024)
    data = Random(7).randbytes(5 * CONTAINER_BYTES)
    path = tmp_path / "file"
    path.write_bytes(data)
    began_s: list[float] = []

    def slow(_length_bytes: int) -> None:
        if not began_s:
            began_s.append(time.monotonic())
            wait_until(lambda: time.monotonic() - began_s[0] > 4 * IDLE_MS / 1000)

    with (
        forked_cluster(
            tmp_path / "c",
            container_bytes_max=CONTAINER_BYTES,
            scm_settings={"session_idle_ms": IDLE_MS},
        ) as cluster,
        ClusterClient(cluster.scm.address) as client,
    ):
        _, containers = client.put([SourceFile("key", path, len(data))], lanes=1, progress=slow)

        assert data == b"".join(client.get("key"))

    assert len(containers) >= 3
