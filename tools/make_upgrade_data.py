"""Make the data of an earlier version, which today's programs must open (test_upgrade.py).

    python tools/make_upgrade_data.py COMMIT TARGET.tar.zst

The programs of that commit are installed into an environment of their own and run as a cluster of
one control plane and four agents, until there is some of everything that is kept: copies, packs and
shards, containers closed and open, keys deleted, replicas damaged, mended and moved. Then one agent
is killed, the others are stopped, and their directories are packed with `expected.json`, which says
what they hold. tests/golden/upgrade/0.1.tar.zst is what 667d515 kept, of 2026-11-22.
"""

import argparse
import hashlib
import json
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

ROOT = Path(__file__).resolve().parent.parent
AGENTS, VOLUMES = 4, 2
SMALL = 1_100  # blocks: so many that a copy puts them into a pack
WAIT_S = 120
LEVEL = 19
WINDOW_LOG = 27  # 128 MiB: replicas of one container are packed once
CONFIG = """
[node]
listen = "127.0.0.1:0"
scm = "{scm}"
rack = "/rack{rack}"
[storage]
volumes = {volumes}
reserve_bytes = 0
[observe]
listen = "127.0.0.1:0"
[scan]
watch = false
"""
SCM_OPTIONS = {
    "heartbeat_interval_ms": 200,
    "container_bytes_max": 4 << 20,
    "stale_after_ms": 3_000,
    "dead_after_ms": 600_000,
}


class OldCluster:
    """The programs of the commit, and what they keep."""

    def __init__(self, programs: Path, root: Path) -> None:
        self._programs = programs
        self._root = root
        self._running: list[subprocess.Popen[str]] = []
        options = [f"--set={name}={value}" for name, value in SCM_OPTIONS.items()]
        self.scm = self._start(
            "scm", "suture-scm", "--data", root / "scm", "--listen", "127.0.0.1:0", *options
        )
        self.agents = [self._start_agent(number) for number in range(1, AGENTS + 1)]
        self.wait(lambda: len(self.json("scm", "nodes")) == AGENTS, "all register")

    def _start_agent(self, number: int) -> str:
        volumes = [str(self._root / f"datanode{number}" / f"vol{v + 1}") for v in range(VOLUMES)]
        for volume in volumes:
            Path(volume).mkdir(parents=True)
        config = self._root / f"datanode{number}.toml"
        told = {"scm": self.scm, "rack": number % 2, "volumes": json.dumps(volumes)}
        config.write_text(CONFIG.format(**told))
        return self._start(f"datanode{number}", "suture-agent", "--config", config)

    def _start(self, name: str, program: str, *words: str | Path) -> str:
        process = subprocess.Popen(
            [self._programs / program, *words],
            stdout=subprocess.PIPE,
            stderr=(self._root / f"{name}.log").open("w"),
            text=True,
        )
        self._running.append(process)
        assert process.stdout is not None
        return str(json.loads(process.stdout.readline())["address"])

    def suture(self, *words: str, codes: tuple[int, ...] = (0, 2)) -> str:
        """Type a command; return what it prints."""
        done = subprocess.run(
            [self._programs / "suture", *words, "--scm", self.scm], capture_output=True, text=True
        )
        if done.returncode not in codes:
            raise SystemExit(f"suture {words}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def json(self, *words: str) -> Any:
        """Type a command; return its document."""
        return json.loads(self.suture(*words, "--json"))

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds."""
        end_s = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > end_s:
                raise SystemExit(f"waited in vain until {what}")
            time.sleep(0.3)

    def replicas(self, container_id: int) -> list[dict[str, Any]]:
        """Return the replicas of a container as the control plane sees them."""
        found = self.json("scm", "container", str(container_id))["replicas"]
        return [
            item["replica"] | {"datanode_id": item["datanode"]["datanode_id"]} for item in found
        ]

    def put(self, files: list[Path], *words: str) -> int:
        """Store files, in one container; return it, closed on all datanodes if that is asked."""
        names = [str(file) for file in files]
        [container_id] = self.json("put", *names, "--lanes", "1", *words)["container_ids"]
        if "--close" in words:
            self.wait(
                lambda: (
                    {"CLOSED"} == {one["state"] for one in self.replicas(container_id)}
                    and len(self.replicas(container_id)) == 3
                ),
                f"container {container_id} is closed",
            )
        return int(container_id)

    def damage(self, container_id: int) -> None:
        """Flip a bit of the first replica that lies in files; have it found."""
        for number in range(1, AGENTS + 1):
            folders = (self._root / f"datanode{number}").glob(
                f"vol*/hdds/*/current/containerDir*/{container_id}/chunks"
            )
            blocks = sorted(file for folder in folders for file in folder.glob("*.block"))
            if blocks:
                content = bytearray(blocks[0].read_bytes())
                content[len(content) // 2] ^= 4
                blocks[0].write_bytes(content)
                self.suture("scan", str(container_id), "--wait")
                return
        raise SystemExit(f"container {container_id} has no block files")

    def stop(self) -> None:
        """Kill the last agent, stop the others, and the control plane at last."""
        self._running[-1].kill()
        for process in reversed(self._running):
            process.terminate()
            process.wait(60)


def filled(cluster: OldCluster, sources: Path) -> dict[str, Any]:
    """Make some of everything; return what is expected of it."""
    closed = cluster.put(files(sources / "plain", 12, 15_000), "--prefix", "plain/", "--close")
    small = cluster.put(files(sources / "small", SMALL, 20), "--prefix", "small/", "--close")
    coded = cluster.put(
        files(sources / "coded", 3, 70_000),
        *("--prefix", "coded/", "--replication", "xor-2-1-64k", "--close"),
    )
    damaged = cluster.put(files(sources / "damaged", 4, 10_000), "--prefix", "damaged/", "--close")
    cluster.damage(closed)
    cluster.suture("reconcile", str(closed))
    cluster.wait(lambda: not cluster.json("findings"), "the first damage is mended")
    cluster.suture("rm", "--yes", "plain/3.bin", "small/7.bin")
    cluster.wait(lambda: all(tombstones(cluster, one) for one in (closed, small)), "blocks go")
    holder = cluster.replicas(small)[0]["datanode_id"]
    cluster.suture("scm", "decommission", holder, "--yes")
    cluster.wait(lambda: "DECOMMISSIONED" in cluster.suture("scm", "nodes"), "a datanode leaves")
    opened = cluster.put(files(sources / "open", 5, 5_000), "--prefix", "open/")
    cluster.damage(damaged)
    cluster.suture("scm", "suppress", str(small))
    return {
        "containers": {
            "closed": closed, "small": small, "coded": coded, "damaged": damaged, "open": opened,
        },
        "keys": [key["key"] for key in cluster.json("ls")],
        "nodes": {node["datanode_id"]: node["op_state"] for node in cluster.json("scm", "nodes")},
        "decommissioned": holder,
        "replicas": {
            str(one): sorted((r["datanode_id"], r["state"]) for r in cluster.replicas(one))
            for one in (closed, small, coded, damaged, opened)
        },
    }  # fmt: skip


def tombstones(cluster: OldCluster, container_id: int) -> bool:
    """Whether every replica of a container has a tombstone."""
    shown = cluster.suture("tree", str(container_id))
    return not re.search(r"\b0 tombstones", shown) and "tombstones" in shown


def files(folder: Path, count: int, size_bytes: int) -> list[Path]:
    """Write files of random bytes, the same in each run."""
    folder.mkdir(parents=True)
    made = random.Random(folder.name)  # noqa: S311 - to be the same again, not secret
    for number in range(count):
        (folder / f"{number}.bin").write_bytes(made.randbytes(size_bytes + number % 50))
    return sorted(folder.iterdir())


def installed(commit: str, scratch: Path) -> Path:
    """Install the commit into an environment of its own; return where its programs are."""
    source, environment = scratch / "source", scratch / "venv"
    source.mkdir()
    archive = subprocess.run(
        ["git", "archive", commit],  # noqa: S607
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    ).stdout
    subprocess.run(["tar", "x"], cwd=source, input=archive, check=True)  # noqa: S607
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "./source[scm]"], cwd=scratch, check=True
    )
    return environment / "bin"


def packed(root: Path, target: Path) -> None:
    """Pack what is to be opened again: the volumes, the state, and what is expected of them."""
    parameters = zstandard.ZstdCompressionParameters.from_level(
        LEVEL, window_log=WINDOW_LOG, enable_ldm=True
    )
    names = ["expected.json", "scm", *(f"datanode{number}" for number in range(1, AGENTS + 1))]
    with target.open("wb") as file:
        compressor = zstandard.ZstdCompressor(compression_params=parameters)
        with (
            compressor.stream_writer(file) as stream,
            tarfile.open(fileobj=stream, mode="w|") as tar,
        ):
            for name in names:
                tar.add(root / name, arcname=name)


def main() -> None:
    """Install, run, fill, stop, pack."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("commit", help="of which version")
    parser.add_argument("target", type=Path, help="the archive to write")
    parser.add_argument("--programs", type=Path, help="where it is installed already")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="suture-old-") as name:
        scratch = Path(name)
        programs = arguments.programs or installed(arguments.commit, scratch)
        root, sources = scratch / "root", scratch / "sources"
        root.mkdir()
        cluster = OldCluster(programs, root)
        try:
            expected = filled(cluster, sources)
        finally:
            cluster.stop()
        checksums = {
            f"{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sources.rglob("*.bin")
        }
        expected["keys"] = {key: checksums[key] for key in expected["keys"]}
        expected["commit"] = arguments.commit
        (root / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
        packed(root, arguments.target)
    print(f"{arguments.target}: {arguments.target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
