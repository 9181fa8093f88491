"""The import contracts of pyproject.toml hold, and each of them can fail."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.packaging.tidy import PRODUCT_PACKAGES

ROOT = Path(__file__).resolve().parents[2]
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")

# contract -> (a module that breaks it, what the module imports)
PLANTED = {
    "data flows one way": ("scanner/planted_upward.py", "import suture.errors"),
    "the control plane is built in storeys": ("scm/state/planted_upward.py", "import scm.cluster"),
    "the edge of the control plane is built in storeys": (
        "scm/api/cluster_status/planted_upward.py",
        "import scm.api.calls.components",
    ),
    "the replication manager is built in storeys": (
        "scm/replication/health/planted_upward.py",
        "import scm.replication.processors",
    ),
    "the agent is built in floors": ("agent/config/planted_upward.py", "import agent.store.files"),
    "the command line is built in floors": (
        "agent/cli/inspect/planted_upward.py",
        "import agent.cli.change",
    ),
    "the shared library is built in floors": (
        "suture/ec/planted_upward.py",
        "import suture.client",
    ),
    "the wire is built in floors": (
        "suture/wire/mapping/planted_upward.py",
        "import suture.wire.clients",
    ),
    "the store is built in floors": (
        "agent/store/files/planted_upward.py",
        "import agent.store.index",
    ),
    "clients are called by their face": (
        "agent/cli/planted_reader.py",
        "import suture.client.ecreader",
    ),
    "nobody needs Ozone": ("agent/planted_ozone.py", "import ozone.disk.layout"),
    "Ozone is served from the agent's store, by nothing that reads Ozone's disks": (
        "ozone/datanode_server/planted_volume.py",
        "import ozone.scrub.reader",
    ),
    "an agent among Ozone's datanodes is put together in one place": (
        "ozone/disk/planted_upward_to_serving.py",
        "import ozone.datanode_server.messages",
    ),
    "an agent is led by Ozone in floors": (
        "ozone/scm_link/messages.py",
        "import ozone.scm_link.leader",
    ),
    "Ozone's archives are taken in floors": (
        "ozone/transfer/messages.py",
        "import ozone.transfer.service",
    ),
    "Ozone's peers are served in floors": (
        "ozone/datanode_server/results.py",
        "import ozone.datanode_server.grpc_server",
    ),
    "Ozone's disks are read below what is made of them": (
        "ozone/disk/planted_upward.py",
        "import ozone.scrub.reader",
    ),
    "Ozone's services are asked below what is made of the answers": (
        "ozone/clients/messages.py",
        "import ozone.cluster.export",
    ),
    "Ozone's formats are read by pure code": ("ozone/disk/treefile.py", "import pathlib"),
    "merkle is pure": ("merkle/planted_clock.py", "import time"),
    "the judge is pure": ("health/planted_arrow.py", "import pyarrow"),
    "the verification is built in floors": (
        "spark_verify/snapshot/planted_upward.py",
        "import spark_verify.tasks",
    ),
    "the Spark job needs nothing a datanode has": ("spark_verify/planted_rpc.py", "import grpc"),
    "Spark's workers need only the modules that the job sends": (
        "spark_verify/tasks/planted_page.py",
        "import jinja2",
    ),
    "decisions are pure": ("agent/plan/planted_disk.py", "import pathlib"),
    "threads live in few folders": ("agent/store/planted_thread.py", "import threading"),
    "only the store touches volumes": ("suture/wire/planted_index.py", "import lmdb"),
    "the control plane speaks to the agent only over the wire": (
        "scm/planted_store.py",
        "import agent.store",
    ),
}
NO_CIRCLE = "no module and no folder is in a circle"
CIRCLE = {
    "health/planted_first.py": "import health.planted_second",
    "health/planted_second.py": "import health.planted_first",
}


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of the tree at `folder`, whose modules win over the installed ones."""
    return subprocess.run(
        [LINT_IMPORTS, "--no-logo", "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the linter says of a copy of this repository in which every contract is broken."""
    copy = tmp_path_factory.mktemp("planted")
    shutil.copy(ROOT / "pyproject.toml", copy)
    for package in (*PRODUCT_PACKAGES, "bench", "tests", "tools"):
        for module in (ROOT / package).rglob("*.py"):
            target = copy / module.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(module, target)
    for path, statement in (*PLANTED.values(), *CIRCLE.items()):
        (copy / path).write_text(statement + "\n")
    checked = lint_imports(copy)
    assert checked.returncode != 0
    return checked.stdout


def test_repository_keeps_its_import_contracts() -> None:
    """No package imports a module that its contract forbids."""
    checked = lint_imports(ROOT)

    assert 0 == checked.returncode, checked.stdout + checked.stderr
    assert f"Contracts: {len(PLANTED) + 1} kept, 0 broken." in checked.stdout


@pytest.mark.parametrize("contract", PLANTED)
def test_a_broken_contract_is_named(contract: str, planted: str) -> None:
    """
    The linter names the contract and the module that breaks it.
    """
    path, _ = PLANTED[contract]

    assert f"{contract} BROKEN" in planted
    assert path.removesuffix(".py").replace("/", ".") in planted


def test_two_modules_that_import_each_other_are_named(planted: str) -> None:
    named = ("- .planted_first -> .planted_second", "- .planted_second -> .planted_first")

    assert f"{NO_CIRCLE} BROKEN" in planted
    assert any(line in planted for line in named)
