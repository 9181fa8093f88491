"""Generate the modules of protobuf from proto/, with the pinned protoc (group `codegen`).

    python tools/gen_proto.py            write the generated modules
    python tools/gen_proto.py --check    exit 1 if what is committed is not what proto/ says

The newest protoc would emit code that rejects older protobuf runtimes. So the oldest supported one
is used from a temporary directory, because it pins protobuf below the project's own.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (Path("suture/wire/v1"), Path("ozone/messages"))


def main() -> int:
    """Generate, then write or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="suture-proto-") as scratch:
        generated = generate(Path(scratch))
        if arguments.check:
            return compare(generated)
        for name, data in generated.items():
            (ROOT / name).write_bytes(data)
            print(f"wrote {name}")
    return 0


def generate(scratch: Path) -> dict[str, bytes]:
    """Run the pinned protoc into `scratch`; return the generated modules by path."""
    found = with_protoc(scratch / "packages")
    out = scratch / "out"
    out.mkdir()
    for package in PACKAGES:
        paths = sorted((ROOT / "proto" / package).glob("*.proto"))
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "proto")]
        command += [f"--python_out={out}", f"--pyi_out={out}"]
        subprocess.run([*command, *map(str, paths)], env=found, check=True)
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*_pb2*")}


def with_protoc(packages: Path) -> dict[str, str]:
    """Install the pinned grpcio-tools into `packages`; return the environment that finds it."""
    pins = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["codegen"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target"]
    subprocess.run([*pip, str(packages), *pins], check=True)
    return os.environ | {"PYTHONPATH": str(packages)}


def compare(generated: dict[str, bytes]) -> int:
    """Return 1 and name the files if the committed modules differ from the generated ones."""
    committed = {
        str(path.relative_to(ROOT)): path.read_bytes()
        for package in PACKAGES
        for path in (ROOT / package).glob("*_pb2*")
    }
    stale = sorted(
        name for name in generated | committed if generated.get(name) != committed.get(name)
    )
    for name in stale:
        print(f"{name} is not what proto/ says; run: python tools/gen_proto.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
