"""The files of a package, laid out below a folder as they lie on a host."""

import gzip
import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from typer._completion_shared import get_completion_script

from tools.man import page
from tools.packages import wheels

ROOT: Final = Path(__file__).resolve().parents[2]
HOME: Final = Path("opt/suture")
PROGRAMS: Final = ("suture", "suture-agent", "suture-scm", "suture-verify")
DOCUMENTS: Final = ("README.md", "CHANGELOG.md", "LICENSE", "SECURITY.md", "docs/OPERATIONS.md",
                    "docs/CONFIGURATION.md", "docs/EVENTS.md", "docs/OZONE.md")  # fmt: skip
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONS: Final = Path("etc/suture/agent.toml")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where distributions differ."""

    units: str
    zsh: str


DEBIAN: Final = Layout("lib/systemd/system", "usr/share/zsh/vendor-completions")
RPM: Final = Layout("usr/lib/systemd/system", "usr/share/zsh/site-functions")


def stage(root: Path, layout: Layout) -> None:
    """Put everything below `root`. Raise wheels.Incomplete."""
    wheels.gather(root / HOME / "wheels")
    place_files(root, layout)
    place_programs(root, layout)
    place_manuals(root)


def place_files(root: Path, layout: Layout) -> None:
    """Copy what the system reads: units, users, folders, options, documents."""
    units = sorted([*(ROOT / "systemd").glob("*.service"), *(ROOT / "systemd").glob("*.timer")])
    copies: dict[Path, str | Path] = {
        **{unit: f"{layout.units}/{unit.name}" for unit in units},
        ROOT / "systemd/sysusers.d/suture.conf": "usr/lib/sysusers.d/suture.conf",
        ROOT / "systemd/tmpfiles.d/suture.conf": "usr/lib/tmpfiles.d/suture.conf",
        ROOT / "systemd/agent.toml": OPTIONS,
        ROOT / "monitoring/alerts.yaml": "usr/share/suture/alerts.yaml",
        ROOT / "monitoring/dashboard.json": "usr/share/suture/dashboard.json",
        ROOT / "systemd/suture-scm-verify.conf": "usr/share/suture/suture-scm-verify.conf",
        ROOT / "tools/packages/make-environment": HOME / "make-environment",
        **{ROOT / name: f"usr/share/doc/suture/{Path(name).name}" for name in DOCUMENTS},
    }
    for source, target in copies.items():
        place(root / target, source.read_bytes())
    (root / OPTIONS).chmod(0o640)
    (root / HOME / "make-environment").chmod(0o755)


def place_programs(root: Path, layout: Layout) -> None:
    """Link the commands into the path, with their completion."""
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        (root / "usr/bin" / program).symlink_to(Path("/") / HOME / "venv/bin" / program)
    for shell, where in (
        ("bash", "usr/share/bash-completion/completions/suture"),
        ("zsh", f"{layout.zsh}/_suture"),
        ("fish", "usr/share/fish/vendor_completions.d/suture.fish"),
    ):
        script = get_completion_script(
            prog_name="suture", complete_var="_SUTURE_COMPLETE", shell=shell
        )
        place(root / where, (script + "\n").encode())


def place_manuals(root: Path) -> None:
    """Write the man pages; each command is asked for its help."""
    for program in PROGRAMS:
        text = page(program, Path(sys.executable))
        target = root / f"usr/share/man/man1/{program}.1.gz"
        place(target, gzip.compress(text.encode(), mtime=0))


def place(target: Path, content: bytes) -> None:
    """Write a file that everybody may read."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(0o644)


def readable(root: Path) -> None:
    """Let everybody enter the folders, whatever the umask was, and read the wheels."""
    for path in [root, *root.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
        elif path.parent.name == "wheels":
            path.chmod(0o644)


def tool(name: str, package: str) -> str:
    """Return the path of a program that packs; exit where it is absent."""
    path = shutil.which(name)
    if path is None:
        sys.exit(f"{name} is needed and not here; on Debian: apt-get install {package}")
    return path
