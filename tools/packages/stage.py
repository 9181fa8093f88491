"""The files of two packages, laid out below a folder as on a host.

- `suture` contains the agent, the control plane, the command line, and their wheels.
- `suture-verify` contains the Spark job: its wheels, which are installed into the same environment,
  and its unit and timer.
"""

import gzip
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from typer._completion_shared import get_completion_script

from tools.man import page
from tools.packages import wheels
from tools.packages.contents import HOME, copyright_text

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAMS: Final = ("suture", "suture-agent", "suture-scm")
VERIFY: Final = "suture-verify"
VERIFY_DESCRIPTION: Final = "Compares the replicas of a whole cluster of Suture or Ozone, on Spark"
MANUAL: Final = sorted(f"docs/operations/{p.name}" for p in (ROOT / "docs/operations").glob("*.md"))
DOCUMENTS: Final = ("README.md", "CHANGELOG.md", "LICENSE", "SECURITY.md", *MANUAL,
                    "docs/COMMANDS.md", "docs/CONFIGURATION.md", "docs/ERRORS.md",
                    "docs/METRICS.md", "docs/EVENTS.md", "docs/JSON.md", "docs/CLIENT.md",
                    "docs/VOCABULARY.md", "docs/OZONE.md", "docs/OZONE_REFERENCE.md",
                    "docs/OZONE_SECURITY.md", "docs/BENCHMARKS.md", "docs/PROOFS.md",
                    "docs/WIRE.md", "docs/VERIFICATION_LOG.md")  # fmt: skip
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DESCRIPTION: Final = PROJECT["description"].rstrip(".")
OPTIONS: Final = Path("etc/suture/agent.toml")
SITE: Final = Path("usr/share/doc/suture/html")
MAN_PAGES: Final = Path("usr/share/man")


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths that differ between distributions."""

    name: str
    units: str
    zsh: str


DEBIAN: Final = Layout("deb", "lib/systemd/system", "usr/share/zsh/vendor-completions")
RPM: Final = Layout("rpm", "usr/lib/systemd/system", "usr/share/zsh/site-functions")


def stage(scratch: Path, layout: Layout) -> dict[str, Path]:
    """Lay out the files of both packages below `scratch`; return the folder of each package by
    name. The wheels and the web site are built only if `scratch` does not have them yet."""
    os.environ.setdefault("SOURCE_DATE_EPOCH", str(commit_time()))
    own, packed, spark, site = (scratch / name for name in ("own", "packed", "spark", "site"))
    if not own.exists():
        wheels.gather(own)
        wheels.pack(own, packed)
        wheels.gather_spark(spark)
        build_site(site)
    root, verify_root = scratch / layout.name / "suture", scratch / layout.name / VERIFY
    shutil.copytree(packed, root / HOME / "wheels", copy_function=os.link)
    place_files(root, layout)
    place_programs(root, layout)
    place_manuals(root, PROGRAMS)
    shutil.copytree(site, root / SITE)
    shutil.copytree(spark, verify_root / HOME / "more", copy_function=os.link)
    place_verify_files(verify_root, layout)
    place_manuals(verify_root, [VERIFY])
    place_copyright(root, "suture", own)
    place_copyright(verify_root, VERIFY, spark)
    for folder in (root, verify_root):
        readable(folder)
    return {"suture": root, VERIFY: verify_root}


def commit_time() -> int:
    """Return the time of the commit, in seconds since the epoch. Files in packages get this time,
    so that two builds of one commit are equal."""
    shown = subprocess.run(
        [tool("git", "git"), "log", "-1", "--format=%ct"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return int(shown.stdout)


def place_copyright(root: Path, package: str, bundled: Path) -> None:
    """Write the licences of the bundled wheels where Debian's policy expects them."""
    text = copyright_text(bundled.glob("*.whl"))
    place(root / "usr/share/doc" / package / "copyright", text.encode())


def build_site(site: Path) -> None:
    """Build the documents as a web site, to which the alerts link."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--quiet",
            "--strict",
            "--site-dir",
            site.absolute(),
        ],
        cwd=ROOT,
        check=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},  # the theme's advertisement
    )
    for path in site.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def place_verify_files(root: Path, layout: Layout) -> None:
    """Copy the system files of `suture-verify`: its unit, timer, drop-in and manual."""
    for unit in units(VERIFY):
        place(root / layout.units / unit.name, unit.read_bytes())
    drop_in = "suture-scm-verify.conf"
    place(root / "usr/share/suture" / drop_in, (ROOT / "systemd" / drop_in).read_bytes())
    for name in ("docs/SPARK.md", "LICENSE"):
        place(root / "usr/share/doc" / VERIFY / Path(name).name, (ROOT / name).read_bytes())
    link_program(root, VERIFY)


def units(prefix: str) -> list[Path]:
    """Return the services and timers whose names begin with `prefix`."""
    kinds = (".service", ".timer")
    return sorted(u for u in (ROOT / "systemd").glob(f"{prefix}*") if u.suffix in kinds)


def place_files(root: Path, layout: Layout) -> None:
    """Copy the system files of `suture`: units, users, folders, options, documents."""
    own = [unit for unit in units("suture") if unit not in units(VERIFY)]
    copies: dict[Path, str | Path] = {
        **{unit: f"{layout.units}/{unit.name}" for unit in own},
        ROOT / "systemd/sysusers.d/suture.conf": "usr/lib/sysusers.d/suture.conf",
        ROOT / "systemd/tmpfiles.d/suture.conf": "usr/lib/tmpfiles.d/suture.conf",
        ROOT / "systemd/agent.toml": OPTIONS,
        ROOT / "monitoring/alerts.yaml": "usr/share/suture/alerts.yaml",
        ROOT / "monitoring/alertmanager.yaml": "usr/share/suture/alertmanager.yaml",
        ROOT / "monitoring/dashboard.json": "usr/share/suture/dashboard.json",
        ROOT / "tools/packages/make-environment": HOME / "make-environment",
        **{ROOT / n: f"usr/share/doc/suture/{n.removeprefix('docs/')}" for n in DOCUMENTS},
    }
    for source, target in copies.items():
        place(root / target, source.read_bytes())
    (root / OPTIONS).chmod(0o640)
    (root / HOME / "make-environment").chmod(0o755)


def link_program(root: Path, program: str) -> None:
    """Link a command into the path."""
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    (root / "usr/bin" / program).symlink_to(Path("/") / HOME / "venv/bin" / program)


def place_programs(root: Path, layout: Layout) -> None:
    """Link the commands into the path, with their completion."""
    for program in PROGRAMS:
        link_program(root, program)
    for shell, where in (
        ("bash", "usr/share/bash-completion/completions/suture"),
        ("zsh", f"{layout.zsh}/_suture"),
        ("fish", "usr/share/fish/vendor_completions.d/suture.fish"),
    ):
        script = get_completion_script(
            prog_name="suture", complete_var="_SUTURE_COMPLETE", shell=shell
        )
        place(root / where, (script + "\n").encode())


def place_manuals(root: Path, programs: Sequence[str]) -> None:
    """Write the man pages from each command's help."""
    for program in programs:
        text = page(program, Path(sys.executable))
        target = root / MAN_PAGES / f"man1/{program}.1.gz"
        place(target, gzip.compress(text.encode(), mtime=0))


def place(target: Path, content: bytes) -> None:
    """Write a file that is readable by all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(0o644)


def readable(root: Path) -> None:
    """Set the modes of folders to 0755, and of wheels and their lists to 0644, because the umask
    may have removed permissions."""
    for path in [root, *root.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
        elif path.parent.name in {"wheels", "more"}:
            path.chmod(0o644)


def tool(name: str, package: str) -> str:
    """Return the path of a packaging program; exit if it is absent."""
    path = shutil.which(name)
    if path is None:
        sys.exit(f"{name} is needed and not here; on Debian: apt-get install {package}")
    return path
