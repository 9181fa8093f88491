"""Generate agent/rpc/v1 from proto/, with the one pinned protoc (pyproject group `codegen`).

    python tools/gen_proto.py            write the generated modules
    python tools/gen_proto.py --check    exit 1 if what is committed is not what proto/ says

The newest protoc would emit code that refuses older protobuf runtimes, so the oldest supported one
is used, in a throw-away environment: it pins protobuf below what the project itself runs on.
"""

import argparse
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("agent/rpc/v1")


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
        for path in generated.iterdir():
            (ROOT / PACKAGE / path.name).write_bytes(path.read_bytes())
            print(f"wrote {PACKAGE / path.name}")
    return 0


def generate(scratch: Path) -> Path:
    """Run the pinned protoc into `scratch`; return the folder of generated modules."""
    python = protoc_python(scratch)
    out = scratch / "out"
    out.mkdir()
    sources = sorted(
        str(path.relative_to(ROOT / "proto")) for path in (ROOT / "proto").rglob("*.proto")
    )
    subprocess.run(
        [python, "-m", "grpc_tools.protoc", "-I", str(ROOT / "proto"),
         f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}", *sources],
        check=True,
    )  # fmt: skip
    return out / PACKAGE


def protoc_python(scratch: Path) -> str:
    """Return an interpreter that has the pinned grpcio-tools."""
    pins = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["codegen"]
    environment = scratch / "venv"
    venv.create(environment, with_pip=True)
    python = str(environment / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *pins], check=True)
    return python


def compare(generated: Path) -> int:
    """Return 1 and name the files if the committed modules are not the generated ones."""
    expected = {path.name: path.read_bytes() for path in generated.iterdir()}
    committed = {
        path.name: path.read_bytes() for path in (ROOT / PACKAGE).iterdir() if "_pb2" in path.name
    }
    stale = sorted(
        name for name in expected | committed if expected.get(name) != committed.get(name)
    )
    for name in stale:
        print(f"{PACKAGE / name} is not what proto/ says; run: python tools/gen_proto.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
