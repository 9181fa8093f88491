"""Build the artifacts of a release: packages, image, bill of materials, checksums and signature.

    python tools/release.py VERSION [--out DIR]

Two builds of one commit are equal byte by byte. If changelog.d/ has files, they are first assembled
into CHANGELOG.md, the version is written into pyproject.toml, and the command stops: commit both
and run it again. RELEASE_KEY names the GPG key that signs SHA256SUMS; without it, nothing is
signed. The RPM packages need rpmbuild, and the image needs mmdebstrap.
"""

import argparse
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a bare checkout, nothing installed

from tools import make_deb, make_image, make_rpm  # noqa: E402
from tools.packages import stage  # noqa: E402
from tools.packages.contents import bill_of_materials  # noqa: E402

FRAGMENTS = ROOT / "changelog.d"
AGENT_BYTES_MAX = 80_000_000  # of each package of the agent


def main() -> int:
    """Check the tree, then build everything; print the artifacts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("version", help="the version to release, such as 0.1.0")
    parser.add_argument("--out", type=Path, help="an empty directory; default: dist/VERSION")
    arguments = parser.parse_args()
    version: str = arguments.version
    if fragments():
        assemble(version)
        print(f"release: CHANGELOG.md and pyproject.toml are for {version}: commit, and run again")
        return 1
    fault = fault_of(version)
    if fault:
        print(f"cannot release {version}: {fault}", file=sys.stderr)
        return 1
    out: Path = arguments.out or ROOT / "dist" / version
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        print(f"cannot release {version}: {out} is not empty", file=sys.stderr)
        return 1
    os.environ.setdefault("SOURCE_DATE_EPOCH", str(stage.commit_time()))
    build(version, out)
    large = oversized(out)
    if large:
        print(f"cannot release {version}: over {AGENT_BYTES_MAX:,} bytes: {large}", file=sys.stderr)
        return 1
    sign(out)
    for path in sorted(out.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path}")
    return 0


def fragments() -> list[Path]:
    """Return the files with notes of changes that are not yet in CHANGELOG.md."""
    return [path for path in sorted(FRAGMENTS.glob("*.md")) if path.name != "README.md"]


def assemble(version: str) -> None:
    """Move the notes into a new section of CHANGELOG.md; write the version into pyproject.toml."""
    run(sys.executable, "-m", "towncrier", "build", "--yes", "--version", version)
    project = ROOT / "pyproject.toml"
    text = re.sub(r'^version = ".*"$', f'version = "{version}"', project.read_text(), flags=re.M)
    project.write_text(text)


def fault_of(version: str) -> str:
    """Return the reason why this checkout cannot be released as `version`; "" if it can."""
    (newest,) = re.findall(
        r"\A.*?^## \[([^]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M | re.S
    )
    changed = output(stage.tool("git", "git"), "status", "--porcelain")
    if stage.PROJECT["version"] != version:
        return f"pyproject.toml has version {stage.PROJECT['version']}"
    if newest != version:
        return f"the first section of CHANGELOG.md is {newest}"
    if changed:
        return f"the working tree has uncommitted changes:\n{changed.rstrip()}"
    return ""


def build(version: str, out: Path) -> None:
    """Build wheel, source distribution, packages, bill of materials, web site, man pages and
    image."""
    run(sys.executable, "-m", "hatchling", "build", "--directory", str(out))
    with tempfile.TemporaryDirectory(prefix="suture-release-") as folder:
        scratch = Path(folder)
        package, _ = make_deb.packages(scratch, out)
        make_rpm.packages(scratch, out)
        _, debian = make_image.image(package, scratch, out)
        roots = [scratch / stage.DEBIAN.name / name for name in ("suture", stage.VERIFY)]
        text = bill_of_materials(roots, version, int(os.environ["SOURCE_DATE_EPOCH"]), debian)
        (out / f"suture-{version}.cdx.json").write_text(text)
        archive([roots[0] / stage.SITE], out / f"suture-{version}-site.tar.xz")
        manuals = [root / stage.MAN_PAGES for root in roots]
        archive(manuals, out / f"suture-{version}-man.tar.xz")


def oversized(out: Path) -> list[str]:
    """Return the names of the agent's packages that are larger than allowed."""
    packages = sorted([*out.glob("suture_*.deb"), *out.glob("suture-[0-9]*.rpm")])
    return [path.name for path in packages if path.stat().st_size > AGENT_BYTES_MAX]


def archive(folders: Iterable[Path], target: Path) -> None:
    """Pack the files below folders, in a fixed order and with the commit's time."""
    made_at = int(os.environ["SOURCE_DATE_EPOCH"])
    files = {path.relative_to(each): path for each in folders for path in each.rglob("*")}
    with tarfile.open(target, "w:xz") as packed:
        for name in sorted(name for name, path in files.items() if path.is_file()):
            member = tarfile.TarInfo(f"{target.name.partition('.tar')[0]}/{name}")
            content = files[name].read_bytes()
            member.size, member.mtime, member.mode = len(content), made_at, 0o644
            packed.addfile(member, io.BytesIO(content))


def sign(out: Path) -> None:
    """Write SHA256SUMS, which `sha256sum --check` reads, and its detached signature."""
    sums = out / "SHA256SUMS"
    lines = [f"{sha256(path)}  {path.name}\n" for path in sorted(out.iterdir())]
    sums.write_text("".join(lines))
    key = os.environ.get("RELEASE_KEY")
    if not key:
        print("release: RELEASE_KEY is not set: SHA256SUMS is not signed", file=sys.stderr)
        return
    run(stage.tool("gpg", "gnupg"), "--batch", "--yes", "--armor", "--local-user", key,
        "--detach-sign", str(sums))  # fmt: skip


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run(*command: str) -> None:
    """Run a command in the checkout; stop if it fails."""
    print("release:", *command, flush=True)
    subprocess.run(command, cwd=ROOT, check=True)


def output(*command: str) -> str:
    """Run a command in the checkout; return its stdout."""
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
