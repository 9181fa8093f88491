"""A number of a replica is declared once, and comes out at the end of its way."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from agent.rpc.v1 import container_pb2, scm_pb2
from tests.support.packaging.added_number import NAME, VALUE, leave

ROOT = Path(__file__).resolve().parents[2]
TREES = ("agent", "health", "merkle", "scanner", "scm", "spark_verify", "tests/support")
DECLARATION = "health/tables/replica_numbers.py"
BESIDE = '    finding_count: int = _number(">u4", high=COUNT_MAX)\n'
ADDED = f'    {NAME}: int = _number(">u8", since=1)\n'
END_S = 120.0
POOL = "_descriptor_pool.Default()"


def declare(tree: Path, path: str, add: Callable[[FileDescriptorProto], None]) -> None:
    """Add a field to a message of the wire, as `tools/gen_proto.py` would from its `.proto`."""
    module = {"container": container_pb2, "scm": scm_pb2}[path]
    file = tree / "agent" / "rpc" / "v1" / f"{path}_pb2.py"
    described = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    add(described)
    lines = [
        f"DESCRIPTOR = {POOL}.AddSerializedFile({described.SerializeToString()!r})"
        if line.startswith("DESCRIPTOR = ")
        else line
        for line in file.read_text().splitlines()
    ]
    file.write_text("\n".join(lines) + "\n")


def field(message: str, kind: "FieldDescriptorProto.Type.ValueType") -> Callable[..., None]:
    """Return what adds the number to a message, behind its last field."""

    def add(described: FileDescriptorProto) -> None:
        (found,) = (one for one in described.message_type if one.name == message)
        number = max(one.number for one in found.field) + 1
        found.field.add(
            name=NAME,
            json_name=NAME,
            number=number,
            type=kind,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
        )

    return add


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the product that has one number more: three files are changed."""
    copy = tmp_path / "tree"
    for name in TREES:
        shutil.copytree(
            ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    declared = (copy / DECLARATION).read_text()
    assert BESIDE in declared
    (copy / DECLARATION).write_text(declared.replace(BESIDE, BESIDE + ADDED))
    declare(copy, "container", field("ReplicaReport", FieldDescriptorProto.TYPE_UINT64))
    declare(copy, "scm", field("ReplicaColumns", FieldDescriptorProto.TYPE_BYTES))
    return copy


def test_a_number_is_added_in_one_place_and_the_two_messages(tree: Path, tmp_path: Path) -> None:
    """
    It is kept by datanode and control plane, reported, exported and shown; what was kept and
    exported before is read as it is.
    """
    row = leave(tmp_path)
    (before,) = (tmp_path / "snapshots").iterdir()
    places = (tmp_path / "state", row, before, tmp_path / "later")

    done = subprocess.run(
        [sys.executable, "-m", "tests.support.packaging.added_number", *map(str, places)],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
    )

    assert 0 == done.returncode, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert {
        "index": [0, VALUE],
        "columns": [2, 0],
        "report": VALUE,
        "control plane": VALUE,
        "state before": [2, 2],
        "state": [0, VALUE],
        "snapshot": [VALUE, None],
        "snapshot before": [None],
        "shown": [str(VALUE)],
    } == found
