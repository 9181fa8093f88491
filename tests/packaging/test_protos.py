"""The wire contract is held to buf's rules, and every exception of it is needed."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
BUF: Final = shutil.which("buf") or next(
    (str(path) for path in ROOT.glob(".venv/buf/*/node_modules/.bin/buf")), ""
)
CONFIG: Final[dict[str, Any]] = yaml.safe_load((ROOT / "buf.yaml").read_text())

pytestmark = pytest.mark.skipif(not BUF, reason="buf is not installed: tools/bootstrap.sh buf")


def linted(config: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Lint the protos of this checkout by another config than its own."""
    words = ["lint", "--config", json.dumps(config)]
    return subprocess.run([BUF, *words], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_the_wire_contract_has_no_fault() -> None:
    """
    By the rules of buf.yaml.
    """
    checked = linted(CONFIG)

    assert (0, "") == (checked.returncode, checked.stdout), checked.stderr


@pytest.mark.parametrize("exception", CONFIG["lint"]["except"])
def test_every_exception_is_needed(exception: str) -> None:
    """
    Without it something is found, so that none stays longer than its reason.
    """
    others = [rule for rule in CONFIG["lint"]["except"] if rule != exception]

    checked = linted(CONFIG | {"lint": CONFIG["lint"] | {"except": others}})

    assert 0 != checked.returncode
    assert checked.stdout
