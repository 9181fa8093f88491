"""Every field of the wire contract is held by a test, on a connection between two processes."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.sizes import size
from tests.support.wire.holders import candidates, sides, table, tried
from tests.support.wire.lost_field import ASKED, DONE, LOST, SEEN, all_fields

ROOT: Final = Path(__file__).resolve().parents[2]
HELD: Final = table()
BRIDGE: Final = "set by the bridge to Ozone, for the agent in the same process"
UNSEEN: Final = {
    "suture.v1.ImportBlocks.padding": "moves the data behind it; no receiver looks at it",
    "suture.v1.ReplicateCommand.sources": BRIDGE,
    "suture.v1.ReplicateCommand.replica_index": BRIDGE,
}
"""Fields without an effect on a connection, each with its reason. No test can hold them."""
SAMPLE: Final = size(2, nightly=16)  # of HELD; all: python -m tests.support.wire.holders try
COMMANDS: Final = (
    "sent:suture.v1.DeleteCommand.witnesses",
    "read:suture.v1.DeleteCommand.witnesses",
    "sent:suture.v1.Command.lifetime_ms",
    "sent:suture.v1.Command.priority",
    "sent:suture.v1.ReconcileCommand.holders",
)


def test_the_table_has_every_field_of_the_contract() -> None:
    """
    In the order of the contract: `python -m tests.support.wire.holders find` adds what is new.
    """
    rows = list(dict.fromkeys(key.partition(":")[2] for key in HELD))

    assert all_fields() == rows


def test_every_field_is_held_on_both_sides() -> None:
    """
    A new field comes with a test that fails when it is not sent, and one when it is not received.
    """
    unheld = [key for key, test in HELD.items() if not test]

    assert list(sides(UNSEEN)) == unheld


def test_every_holder_is_a_test() -> None:
    """
    Its file is there, and has a test of that name.
    """
    for test in {test for test in HELD.values() if test}:
        file, *_, name = test.partition("[")[0].split("::")

        assert f"def {name}(" in (ROOT / file).read_text(), test


def test_fields_that_pass_are_recorded(tmp_path: Path) -> None:
    """
    Those that the product sends and receives, each with the test that ran, and how long that took.
    """
    test = (
        "tests/integration/commands/test_proven_delete.py::"
        "test_proven_replica_is_deleted_when_another_is_whole"
    )
    seen = tmp_path / "seen"
    words = ["-q", "-p", "tests.support.wire.recording", "-p", "no:cacheprovider", test]
    subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        env=os.environ | {SEEN: str(seen)},
        check=True,
        capture_output=True,
        timeout=120,
    )

    carrying = candidates(seen)

    for key in ("sent:suture.v1.ProveReplicaRequest.nonce", "read:suture.v1.ReplicaProof.answer"):
        assert [test] == carrying[key]
    assert "sent:suture.v1.DeleteCommand.witnesses" not in carrying


@pytest.mark.slow
def test_tests_notice_a_lost_field() -> None:
    """A field is not sent or not received, and the test that holds it fails."""
    held = [key for key, test in HELD.items() if test]
    keys = [*COMMANDS, *random.Random(49).sample(held, SAMPLE)]

    assert dict.fromkeys(keys, True) == tried((key, HELD[key]) for key in keys)


TESTS_OF_TRIALS: Final = """
import os, threading
from pathlib import Path
from tests.support.wire import trying

trying.DEADLINE_S = 1.0

def lost():
    return Path(os.environ[trying.LOST]).read_text()

def test_one():
    if lost() == "hangs":
        threading.Event().wait()
    assert lost() != "fails"
"""


def test_a_trial_that_hangs_has_no_result(tmp_path: Path) -> None:
    """Only a trial that ends is red or green."""
    (tmp_path / "test_trials.py").write_text(TESTS_OF_TRIALS)
    paths = {name: tmp_path / name for name in (ASKED, DONE, LOST)}
    keys = ("hangs", "fails", "passes")
    paths[ASKED].write_text("".join(f"{key}\ttest_trials.py::test_one\n" for key in keys))
    words = ["-q", "-p", "tests.support.wire.trying", "-p", "no:cacheprovider", "test_trials.py"]

    subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env=os.environ
        | {name: str(path) for name, path in paths.items()}
        | {"PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        timeout=300,
    )

    results = [line.split("\t")[::2] for line in paths[DONE].read_text().splitlines()]
    assert [["fails", "red"], ["passes", "green"]] == results
