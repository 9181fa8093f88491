"""Build a Debian package with wheels for several Pythons.

    python tools/make_deb.py [--out DIR]

On the host they become a virtual environment of its own Python, without a network, when the package
is configured; a trigger makes it again when that Python changes. Nothing is started or enabled;
options are conffiles; removing keeps all data.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a bare checkout, nothing installed

from tools.packages import scripts, stage  # noqa: E402
from tools.packages.wheels import PYTHONS  # noqa: E402

CONTROL = """\
Package: suture
Version: {version}
Architecture: {architecture}
Maintainer: Suture maintainers <maintainers@suture.invalid>
Depends: {pythons}, systemd, util-linux
Section: admin
Priority: optional
Description: {description}
 The agent of a storage host, a reference control plane, and the command line.
 It makes a virtual environment of its own under /opt/suture.
"""
CONFFILES = f"/{stage.OPTIONS}\n"
TRIGGERS = "".join(
    f"interest-noawait /usr/bin/python{version}\n" for version in ("3", *reversed(PYTHONS))
)
POSTINST = f"""\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
{scripts.indented(scripts.INSTALLED)}\
elif [ "$1" = triggered ]; then
{scripts.indented(scripts.PYTHON_CHANGED)}\
fi
"""
PRERM = f"""\
#!/bin/sh
set -e
if [ "$1" = remove ]; then
{scripts.indented(scripts.REMOVING)}\
fi
"""
POSTRM = f"""\
#!/bin/sh
set -e
{scripts.REMOVED}"""


def main() -> int:
    """Stage the files, then pack them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory of the package")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="suture-deb-") as scratch:
        root = Path(scratch) / "root"
        stage.stage(root, stage.DEBIAN)
        target = pack(root, arguments.out)
    print(target)
    return 0


def pack(root: Path, out: Path) -> Path:
    """Add the package's own files and build it; return its path."""
    architecture = subprocess.run(
        [stage.tool("dpkg", "dpkg"), "--print-architecture"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    stage.readable(root)
    for name, text, mode in (
        ("control", control(architecture), 0o644),
        ("conffiles", CONFFILES, 0o644),
        ("triggers", TRIGGERS, 0o644),
        ("postinst", POSTINST, 0o755),
        ("prerm", PRERM, 0o755),
        ("postrm", POSTRM, 0o755),
    ):
        stage.place(root / "DEBIAN" / name, text.encode())
        (root / "DEBIAN" / name).chmod(mode)
    target = out / f"suture_{stage.PROJECT['version']}_{architecture}.deb"
    subprocess.run(  # wheels are compressed already
        [stage.tool("dpkg-deb", "dpkg"), "--root-owner-group", "-Zgzip", "-z1", "--build", root,
         target],
        check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return target


def control(architecture: str) -> str:
    """Return what the package says of itself; any one Python that there are wheels for will do."""
    return CONTROL.format(
        version=stage.PROJECT["version"],
        architecture=architecture,
        pythons=" | ".join(f"python{version}" for version in reversed(PYTHONS)),
        description=stage.PROJECT["description"].rstrip("."),
    )


if __name__ == "__main__":
    sys.exit(main())
