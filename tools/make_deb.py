"""Build a Debian package with its own virtual environment under /opt/suture.

    python tools/make_deb.py [--out DIR] [--python /usr/bin/python3]

The interpreter is Debian's: the package depends on exactly its minor version, because the compiled
libraries do. Nothing is started or enabled; options are conffiles; removing keeps all data.
"""

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a bare checkout, nothing installed

from typer._completion_shared import get_completion_script  # noqa: E402

from tools.man import page  # noqa: E402

VENV = Path("opt/suture/venv")
PROGRAMS = ("suture", "suture-agent", "suture-scm", "suture-verify")
DOCUMENTS = ("README.md", "CHANGELOG.md", "LICENSE", "SECURITY.md", "docs/OPERATIONS.md",
             "docs/CONFIGURATION.md", "docs/EVENTS.md", "docs/OZONE.md")  # fmt: skip
SHELLS = {"bash": "usr/share/bash-completion/completions/suture",
          "zsh": "usr/share/zsh/vendor-completions/_suture",
          "fish": "usr/share/fish/vendor_completions.d/suture.fish"}  # fmt: skip
CONTROL = """\
Package: suture
Version: {version}
Architecture: {architecture}
Maintainer: Suture maintainers <maintainers@suture.invalid>
Depends: python3 (>= {minor}), python3 (<< {next_minor}), systemd
Section: admin
Priority: optional
Description: {description}
 The agent of a storage host, a reference control plane, and the command line.
 It has its own virtual environment under /opt/suture.
"""
POSTINST = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    systemd-sysusers suture.conf
    systemd-tmpfiles --create suture.conf
    chgrp suture /etc/suture/agent.toml
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
fi
"""
PRERM = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl stop suture-verify.timer suture-scm-backup.timer \\
        suture-agent.service suture-scm.service suture-ozone-scrub.service
fi
"""
POSTRM = """\
#!/bin/sh
set -e
# Bytes and the control plane's state below /var/lib stay, also on purge.
[ ! -d /run/systemd/system ] || systemctl daemon-reload
"""


def main() -> int:
    """Stage the files, then pack them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory of the package")
    parser.add_argument("--python", default="/usr/bin/python3", help="the interpreter to run on")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="suture-deb-") as scratch:
        stage = Path(scratch) / "root"
        build_environment(stage, arguments.python)
        place_files(stage)
        place_faces(stage)
        target = pack(stage, arguments.out, arguments.python)
    print(target)
    return 0


def build_environment(stage: Path, python: str) -> None:
    """Make the virtual environment, and let its scripts name the place where it will be."""
    environment = stage / VENV
    subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install",
         "--quiet", "--no-warn-script-location", f"{ROOT}[ozone,scm]"],
        check=True,
    )  # fmt: skip
    for script in (environment / "bin").iterdir():
        if script.is_file() and not script.is_symlink():
            content = script.read_bytes()
            if content.startswith(b"#!"):
                content = content.replace(bytes(environment), b"/" + bytes(VENV))
                # What root runs must not leave bytecode behind that dpkg does not know.
                script.write_bytes(content.replace(b"\n", b" -B\n", 1))
    for activate in (environment / "bin").glob("[aA]ctivate*"):
        activate.unlink()  # for people; it names the staging place


def place_files(stage: Path) -> None:
    """Copy what the system reads: units, users, folders, options, documents."""
    units = sorted([*(ROOT / "systemd").glob("*.service"), *(ROOT / "systemd").glob("*.timer")])
    copies = {
        **{unit: f"lib/systemd/system/{unit.name}" for unit in units},
        ROOT / "systemd/sysusers.d/suture.conf": "usr/lib/sysusers.d/suture.conf",
        ROOT / "systemd/tmpfiles.d/suture.conf": "usr/lib/tmpfiles.d/suture.conf",
        ROOT / "systemd/agent.toml": "etc/suture/agent.toml",
        ROOT / "monitoring/alerts.yaml": "usr/share/suture/alerts.yaml",
        ROOT / "monitoring/dashboard.json": "usr/share/suture/dashboard.json",
        **{ROOT / name: f"usr/share/doc/suture/{Path(name).name}" for name in DOCUMENTS},
    }
    for source, target in copies.items():
        place(stage / target, source.read_bytes())
    (stage / "etc/suture/agent.toml").chmod(0o640)


def place_faces(stage: Path) -> None:
    """Link the commands into the path; add man pages and completion."""
    (stage / "usr/bin").mkdir(parents=True)
    for program in PROGRAMS:
        (stage / "usr/bin" / program).symlink_to(Path("/") / VENV / "bin" / program)
        text = page(program, Path(sys.executable))
        target = stage / f"usr/share/man/man1/{program}.1.gz"
        place(target, gzip.compress(text.encode(), mtime=0))
    for shell, where in SHELLS.items():
        script = get_completion_script(
            prog_name="suture", complete_var="_SUTURE_COMPLETE", shell=shell
        )
        place(stage / where, (script + "\n").encode())


def place(target: Path, content: bytes) -> None:
    """Write a file that everybody may read."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(0o644)


def pack(stage: Path, out: Path, python: str) -> Path:
    """Add the package's own files and build it; return its path."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    architecture = said("dpkg", "--print-architecture")
    minor = int(said(python, "-c", "import sys; print(sys.version_info.minor)"))
    control = CONTROL.format(
        version=project["version"],
        architecture=architecture,
        minor=f"3.{minor}",
        next_minor=f"3.{minor + 1}",
        description=project["description"].rstrip("."),
    )
    for name, text, mode in (
        ("control", control, 0o644),
        ("conffiles", "/etc/suture/agent.toml\n", 0o644),
        ("postinst", POSTINST, 0o755),
        ("prerm", PRERM, 0o755),
        ("postrm", POSTRM, 0o755),
    ):
        place(stage / "DEBIAN" / name, text.encode())
        (stage / "DEBIAN" / name).chmod(mode)
    for folder, folders, _ in os.walk(stage):
        for name in folders:
            (Path(folder) / name).chmod(0o755)
    stage.chmod(0o755)
    target = out / f"suture_{project['version']}_{architecture}.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", stage, target],  # noqa: S607
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return target


def said(*command: str) -> str:
    """Return what a command prints."""
    path = shutil.which(command[0]) or command[0]
    return subprocess.run(
        [path, *command[1:]], check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
