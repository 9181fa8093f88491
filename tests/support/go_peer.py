"""Builds and runs a peer in Go, whose code for messages is generated from the contract.

protoc is not needed: the committed code contains the descriptors that protoc would read from
`proto/`, and `test_generated.py` checks that they match. `go.mod` pins Go's own tools.
"""

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.compiler import plugin_pb2

from suture.wire.security.tls import TlsFiles
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2

SOURCE: Final = Path(__file__).parent / "peer_go"
GO_MINOR_MIN: Final = 24  # of Go 1: tools are pinned in go.mod
GENERATORS: Final = ("protoc-gen-go", "protoc-gen-go-grpc")
PACKAGE: Final = "suturepeer/v1"
BUILD_TIMEOUT_S: Final = 900  # builds gRPC, without a cache, on a busy machine
RUN_TIMEOUT_S: Final = 60


@dataclass(frozen=True, slots=True)
class GoPeer:
    """The peer's built program."""

    program: Path

    def read(
        self, address: str, container_id: int, files: TlsFiles | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Read a container from an agent; return the exit code and the output. An invalid answer
        fails the test."""
        words = [address, str(container_id)]
        if files is not None:
            own = {"certificate": files.certificate, "key": files.key, "ca": files.ca}
            words = [f"-{name}={path}" for name, path in own.items()] + words
        done = subprocess.run(
            [self.program, *words],
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
        )
        assert done.returncode in {0, 1}, done.stderr
        return done.returncode, json.loads(done.stdout)


def built(folder: Path) -> GoPeer:
    """Generate the code and build the peer below `folder`; return the peer. Skip the test if Go or
    its modules are missing."""
    check_toolchain()
    for name in ("main.go", "go.mod", "go.sum"):
        shutil.copy(SOURCE / name, folder / name)
    if go(folder, "mod", "download").returncode != 0:
        pytest.skip("the modules of the Go peer are not here, and no module proxy answers")
    for tool in GENERATORS:
        generate(folder, tool)
    program = folder / "peer"
    made = go(folder, "build", "-o", str(program), ".")
    assert 0 == made.returncode, made.stderr.decode()
    checked = go(folder, "vet", ".")
    assert 0 == checked.returncode, checked.stderr.decode()
    return GoPeer(program)


def check_toolchain() -> None:
    """Skip the test if Go is missing or too old to build the peer."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    said = go(SOURCE, "version").stdout.decode()
    version = re.search(r"go1\.(\d+)", said)
    if version is None or int(version[1]) < GO_MINOR_MIN:
        pytest.skip(f"the Go peer needs Go 1.{GO_MINOR_MIN}: {said}")


def go(folder: Path, *words: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command `go` with `words` in a folder, without downloading another toolchain."""
    return subprocess.run(
        ["go", *words],  # noqa: S607 - the one on the PATH
        cwd=folder,
        input=data,
        capture_output=True,
        env=os.environ | {"GOTOOLCHAIN": "local", "GOWORK": "off"},
        timeout=BUILD_TIMEOUT_S,
    )


def generate(folder: Path, tool: str) -> None:
    """Generate Go code for the whole contract with a plugin of protoc."""
    contract = [module.DESCRIPTOR for module in (container_pb2, datanode_pb2, scm_pb2)]
    request = plugin_pb2.CodeGeneratorRequest(
        file_to_generate=[file.name for file in contract],
        parameter=",".join(
            ["module=suturepeer", *(f"M{file.name}={PACKAGE}" for file in contract)]
        ),
    )
    for file in contract:
        file.CopyToProto(request.proto_file.add())
    ran = go(folder, "tool", tool, data=request.SerializeToString())
    assert 0 == ran.returncode, ran.stderr.decode()
    answer = plugin_pb2.CodeGeneratorResponse.FromString(ran.stdout)
    assert not answer.error, answer.error
    for made in answer.file:
        path = folder / made.name
        path.parent.mkdir(exist_ok=True)
        path.write_text(made.content)
