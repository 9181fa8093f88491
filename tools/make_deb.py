"""Build the Debian packages `suture` and `suture-verify` with wheels for several Pythons.

    python tools/make_deb.py [--out DIR]

On the host they become a virtual environment of its own Python, without a network, when a package
is configured; a trigger recreates it when that Python changes. Nothing is started or enabled;
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
Depends: {pythons}, {systemd}, util-linux
Installed-Size: {kib}
Section: admin
Priority: optional
Description: {description}
 The agent of a storage host, a reference control plane, and the command line.
 It makes a virtual environment of its own under /opt/suture.
"""
VERIFY_CONTROL = """\
Package: suture-verify
Version: {version}
Architecture: {architecture}
Maintainer: Suture maintainers <maintainers@suture.invalid>
Depends: suture (= {version}), default-jre-headless (>= 2:1.17) | java17-runtime-headless
Installed-Size: {kib}
Section: admin
Priority: optional
Description: {description}
 PySpark for the environment of the package suture, and a timer that verifies every day.
"""
STANDALONE = ("sysusers", "tmpfiles")  # in an image, nothing starts units
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
WHEN_REMOVED = """\
#!/bin/sh
set -e
if [ "$1" = remove ]; then
{}fi
"""
MEMBERS = {
    "suture": {
        "control": CONTROL,
        "conffiles": CONFFILES,
        "triggers": TRIGGERS,
        "postinst": POSTINST,
        "prerm": PRERM,
        "postrm": POSTRM,
    },
    stage.VERIFY: {
        "control": VERIFY_CONTROL,
        "postinst": f"#!/bin/sh\nset -e\n{scripts.VERIFY_INSTALLED}",
        "prerm": WHEN_REMOVED.format(scripts.indented(scripts.VERIFY_REMOVING)),
        "postrm": WHEN_REMOVED.format(scripts.indented(scripts.VERIFY_REMOVED)),
    },
}
"""Package metadata for dpkg."""


def main() -> int:
    """Stage the files, then pack them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory of the packages")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="suture-deb-") as scratch:
        for path in packages(Path(scratch), arguments.out):
            print(path)
    return 0


def packages(scratch: Path, out: Path) -> list[Path]:
    """Build both packages in `out`; return their paths. The staged files stay in `scratch`."""
    roots = stage.stage(scratch, stage.DEBIAN)
    return [pack(root, name, out) for name, root in roots.items()]


def pack(root: Path, package: str, out: Path) -> Path:
    """Add the package metadata for dpkg and build it; return its path."""
    architecture = subprocess.run(
        [stage.tool("dpkg", "dpkg"), "--print-architecture"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    kib = installed_kib(root)
    for name, text in MEMBERS[package].items():
        shown = control(text, architecture, kib) if name == "control" else text
        stage.place(root / "DEBIAN" / name, shown.encode())
        if name.startswith("p"):  # scripts
            (root / "DEBIAN" / name).chmod(0o755)
    (root / "DEBIAN").chmod(0o755)
    target = out / f"{package}_{stage.PROJECT['version']}_{architecture}.deb"
    one_thread = "--threads-max=1"  # the number of threads changes the result
    subprocess.run(
        [stage.tool("dpkg-deb", "dpkg"), "--root-owner-group", "-Zzstd", "-z9", one_thread,
         "--build", root, target],
        check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return target


def installed_kib(root: Path) -> int:
    """Return the space that the files of a package need, as dpkg-gencontrol computes it: each file
    is rounded up to 1 KiB, and each folder needs 1 KiB."""
    sizes = (
        path.lstat().st_size if path.is_symlink() or not path.is_dir() else 1
        for path in root.rglob("*")
    )
    return sum(-(-size // 1024) for size in sizes)


def control(text: str, architecture: str, kib: int) -> str:
    """Return a package's control file; it needs any one of the Pythons with wheels."""
    is_job = text is VERIFY_CONTROL
    return text.format(
        version=stage.PROJECT["version"],
        architecture=architecture,
        kib=kib,
        pythons=" | ".join(f"python{version}" for version in reversed(PYTHONS)),
        systemd=", ".join(f"systemd | systemd-standalone-{tool}" for tool in STANDALONE),
        description=stage.VERIFY_DESCRIPTION if is_job else stage.DESCRIPTION,
    )


if __name__ == "__main__":
    sys.exit(main())
