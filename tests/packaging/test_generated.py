"""The committed wire code is what proto/ says; what is derived from the options is current."""

import subprocess
import sys
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE_KEY = "suture/generated_code_checksum"


def test_the_generated_code_is_current(pytestconfig: pytest.Config) -> None:
    """
    Generating again gives what is committed; unchanged inputs are not generated twice.
    """
    cache = getattr(pytestconfig, "cache", None)  # it may be switched off
    checksum = inputs_checksum()
    if cache is not None and cache.get(CACHE_KEY, None) == checksum:
        return

    checked = subprocess.run(
        [sys.executable, "tools/gen_proto.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )

    if "'pip', 'install'" in checked.stderr:
        pytest.skip("the pinned protoc cannot be installed here: no package index answers")
    assert 0 == checked.returncode, checked.stdout + checked.stderr
    if cache is not None:
        cache.set(CACHE_KEY, checksum)


def test_generated_option_documents_are_current() -> None:
    """The document and the sample of the options agree with their declarations."""
    checked = subprocess.run(
        [sys.executable, "tools/gen_docs.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert 0 == checked.returncode, checked.stdout + checked.stderr


def inputs_checksum() -> int:
    """Return one checksum of everything that the check reads."""
    paths = [
        ROOT / "pyproject.toml",
        ROOT / "tools" / "gen_proto.py",
        *sorted((ROOT / "proto").rglob("*.proto")),
        *sorted((ROOT / "suture" / "wire" / "v1").glob("*_pb2*")),
        *sorted((ROOT / "ozone" / "messages").glob("*_pb2*")),
    ]
    checksum = 0
    for path in paths:
        checksum = zlib.crc32(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes(), checksum)
    return checksum
