"""Try the wheel with each extra in a fresh environment, on each given Python.

    python tools/try_wheel.py [PYTHON ...]

PYTHON is an interpreter, for instance python3.12; without any, the one that runs this. pip installs
an extra and its program is started; without the extra the program must name it. Exit code 1, with
the reason, if something is wrong. Half a minute for each Python if pip has everything in its cache.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a bare checkout, nothing installed

from tools.packages import wheels  # noqa: E402
from tools.packages.hosts import Fault  # noqa: E402

BARE = ("suture --version", "suture-agent --help")
STARTS = {  # the commands that an extra enables
    "ozone": 'python -c "from ozone.disk.database import library; print(library().__name__)"',
    "scm": 'python -c "import suture.wire.mapping.snapshot_file"',
    # Its cluster has unhealthy containers, because only those go through Python.
    "spark": "python {root}/bench/verification/synthetic.py generate {scratch}/s --containers 9 "
    "--faults-per-million 900000 && "
    "{place}/bin/suture-verify {scratch}/s --out {scratch}/o || test $? = 4",
}
LACKING = {  # the commands that must name a missing extra
    "ozone": "suture ozone scrub .",
    "scm": "suture-scm --data /nowhere --set snapshot_address=file:///nowhere",
    "spark": "suture-verify --help",
}


def main() -> int:
    """Build the wheel and try it; print the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("pythons", metavar="PYTHON", nargs="*", default=[sys.executable])
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="suture-wheel-") as scratch:
            wheel = wheels.build(Path(scratch))
            for number, python in enumerate(arguments.pythons):
                tried(wheel, python, Path(scratch) / f"python{number}")
    except Fault as fault:
        print(f"try_wheel: {fault}", file=sys.stderr)
        return 1
    print("try_wheel: every extra installs, starts, and is named where it is absent")
    return 0


def tried(wheel: Path, python: str, folder: Path) -> None:
    """Install the wheel bare, then with each extra in a separate environment. Raise Fault."""
    print(f"{python}: {typed(f'{python} --version').stdout}", end="", flush=True)
    bare = environment(python, folder / "bare", str(wheel))
    for command in BARE:
        started(bare, command)
    for extra, command in LACKING.items():
        ended = typed(f"{bare}/bin/{command}")
        if ended.returncode != 1 or f"pip install 'suture[{extra}]'" not in ended.stderr:
            raise Fault(f"{command}, without {extra}: {ended.returncode}\n{ended.stderr}")
        print(f"  without {extra}: {ended.stderr.splitlines()[0]}", flush=True)
    for extra, command in STARTS.items():
        started(environment(python, folder / extra, f"{wheel}[{extra}]"), command)


def environment(python: str, place: Path, wanted: str) -> Path:
    """Return a fresh environment with `wanted` installed by pip. Raise Fault."""
    for command in (f"{python} -m venv {place}", f"{place}/bin/pip install --quiet '{wanted}'"):
        ended = typed(command)
        if ended.returncode:
            raise Fault(f"{command}: {ended.returncode}\n{ended.stderr}")
    return place


def started(place: Path, command: str) -> None:
    """Run a command of an environment, which must succeed. Raise Fault."""
    command = command.format(root=ROOT, place=place, scratch=place.parent / "scratch")
    ended = typed(f"{place}/bin/{command}")
    if ended.returncode:
        raise Fault(f"{command}: {ended.returncode}\n{ended.stderr}")
    print(f"  {place.name}: {command}: well", flush=True)


def typed(command: str) -> subprocess.CompletedProcess[str]:
    """Run a command line outside of the checkout, whose modules must not be found."""
    return subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, check=False, cwd="/"
    )


if __name__ == "__main__":
    sys.exit(main())
