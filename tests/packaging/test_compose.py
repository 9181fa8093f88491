"""The cluster of compose.yaml, with real containers, where there is podman and the image."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
IMAGE: Final = "localhost/suture"
PROJECT: Final = f"suture-test-{os.getpid()}"
COMPOSE: Final = ("podman-compose", "--project-name", PROJECT)
OPERATOR: Final = (*COMPOSE, "--profile", "operator", "run", "--rm", "--no-deps", "-T")
CALL_S: Final = 300.0

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]


def what_is_missing() -> str:
    """Return what keeps containers from running here; "" for nothing."""
    for program in ("podman", "podman-compose"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if run("podman", "image", "exists", IMAGE).returncode:
        return f"there is no image {IMAGE}: load the archive of a release and tag it"
    if "--profile" not in run("podman-compose", "--help").stdout:
        return "this podman-compose knows no profiles"
    if run("podman", "run", "--rm", IMAGE, "suture", "--version").returncode:
        return "podman cannot run a container here"
    return ""


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in the checkout."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=CALL_S)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """The cluster, up; and nothing of it afterwards."""
    missing = what_is_missing()
    if missing:
        pytest.skip(missing)
    up()
    yield
    run(*COMPOSE, "down", "--volumes")
    left = run("podman", "ps", "--all", "--quiet", "--filter", f"name={PROJECT}").stdout
    assert "" == left


def up() -> None:
    """Start what is not running."""
    done = run(*COMPOSE, "up", "--detach")
    assert 0 == done.returncode, done.stderr


def suture(*arguments: str, more: Sequence[str] = ()) -> str:
    """Type a command in the operator's container; return what it printed, "" if it failed."""
    done = run(*OPERATOR, *more, "operator", "suture", *arguments)
    return done.stdout if done.returncode == 0 else ""


def are_heard() -> bool:
    """Whether all three datanodes are."""
    done = run(*OPERATOR, "operator", "suture", "status", "--json")
    return done.stdout.count('"HEALTHY"') >= 3


def test_stored_file_survives_a_kill_and_new_containers() -> None:
    """A file is stored over mutual TLS, and read while a datanode is dead and from new
    containers on the same volumes.
    """
    wait_until(are_heard, within_s=120)
    stored = (ROOT / "README.md").read_text()
    mounted = ("--volume", f"{ROOT}/README.md:/mnt/README.md:ro,z")

    assert "every file is on 3 datanodes" in suture("put", "/mnt/README.md", more=mounted)
    assert 0 == run("podman", "kill", f"{PROJECT}_datanode2_1").returncode
    while_dead = suture("get", "README.md")
    assert 0 == run(*COMPOSE, "down").returncode
    up()
    wait_until(are_heard, within_s=120)
    afterwards = suture("get", "README.md")

    assert [stored, stored] == [while_dead, afterwards]


@pytest.mark.parametrize("service", ["scm", "datanode1", "datanode2", "datanode3"])
def test_a_server_has_no_rights_and_is_well(service: str) -> None:
    """The container has no root user, no capability and a read-only root, and /healthz answers
    200.
    """
    name = f"{PROJECT}_{service}_1"
    port = 9862 if service == "scm" else 9861

    def inside(*command: str) -> "subprocess.CompletedProcess[str]":
        return run("podman", "exec", name, *command)

    kernel = inside("cat", "/proc/1/status").stdout
    url = f"http://127.0.0.1:{port}/healthz"
    ask = f"from urllib.request import urlopen; print(urlopen({url!r}).status)"
    wait_until(lambda: inside("python3", "-c", ask).stdout == "200\n", within_s=120)
    assert "Uid:\t9859\t9859\t9859\t9859\n" in kernel
    assert "CapEff:\t0000000000000000\n" in kernel
    assert "NoNewPrivs:\t1\n" in kernel
    assert inside("touch", "/written").returncode != 0
