"""Build an image for containers (OCI archive) from the Debian package.

    python tools/make_image.py PACKAGE [--out DIR]
    python tools/make_image.py --lock

The image is a root of Debian, in which the package is installed. image.lock has the version and
SHA-256 of each package of Debian in it, and `--lock` writes that file. A build fails if Debian's
archive has other versions, so two builds of one package are equal. Needs mmdebstrap, and root or
subordinate user ids.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a bare checkout, nothing installed

from tools.packages import oci, stage  # noqa: E402

SUITE: Final = "trixie"
INCLUDED: Final = ("python3", "systemd-standalone-sysusers", "systemd-standalone-tmpfiles")
EXCLUDED: Final = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
LAYER: Final = "layer.tar"
LOCK: Final = ROOT / "tools/packages/image.lock"
UID: Final = 9859  # the mounted directories must be owned by it
LISTED: Final = (  # the records of the installed packages
    """chroot "$1" sh -c 'dpkg-query --show --showformat "\\${Package}=\\${Version}\\n" """
    """| xargs apt-cache show --no-all-versions' >"""
)
INSTALLED: Final = (
    f'chroot "$1" useradd --system --uid {UID} --user-group --home-dir /var/lib/suture '
    "--shell /usr/sbin/nologin suture",
    'chroot "$1" dpkg --install /suture.deb',
    'rm -r "$1/suture.deb" "$1/opt/suture/wheels"',
    # Compiled modules are valid for any time of their source, because that of a file in the image
    # is the commit's.
    'chroot "$1" env PYTHONHASHSEED=0 /opt/suture/venv/bin/python -m compileall -qq -f '
    "--invalidation-mode unchecked-hash /opt/suture/venv/lib",
    'chroot "$1" install -d -m 0750 -o suture -g suture '
    "/etc/suture /var/lib/suture /var/lib/suture-scm",
)
CONFIG: Final = {  # the same as in Containerfile
    "Cmd": ["suture-agent", "--config", "/etc/suture/agent.toml"],
    "Env": ["PATH=/opt/suture/venv/bin:/usr/local/bin:/usr/bin:/bin"],
    "ExposedPorts": {"9859/tcp": {}, "9860/tcp": {}},
    "User": f"{UID}:{UID}",
    "WorkingDir": "/var/lib/suture",
}


def main() -> int:
    """Build the image, or write the lock."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("package", type=Path, nargs="?", help="the .deb of the agent")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory of the archive")
    parser.add_argument("--lock", action="store_true", help="write image.lock")
    arguments = parser.parse_args()
    if arguments.lock == bool(arguments.package):
        parser.error("name a package, or use --lock")
    with tempfile.TemporaryDirectory(prefix="suture-image-") as scratch:
        if arguments.lock:
            LOCK.write_text(make_root(Path(scratch)))
        else:
            print(image(arguments.package, Path(scratch), arguments.out)[0])
    return 0


def image(package: Path, scratch: Path, out: Path) -> tuple[Path, list[str]]:
    """Build the image of a package in `out`; return its path and a line for each package of Debian.
    Exit with an error if a package differs from the lock."""
    os.environ.setdefault("SOURCE_DATE_EPOCH", str(stage.commit_time()))
    lines = make_root(scratch, package).splitlines()
    other = sorted(set(lines) - set(LOCK.read_text().splitlines()))
    if other:
        sys.exit(f"cannot build the image: {LOCK.name} does not have {other}; run make lock")
    version, architecture = package.stem.split("_")[1:]
    target = out / f"suture-{version}-image-{architecture}.tar"
    oci.write(scratch / LAYER, target, f"localhost/suture:{version}", architecture, CONFIG)
    return target, lines


def make_root(scratch: Path, package: Path | None = None) -> str:
    """Write a root of Debian with a package to layer.tar; return a line for each package of
    Debian."""
    records = scratch / "records"
    steps = [f"{LISTED}{records}"]
    if package:
        steps += [f'cp "{package.absolute()}" "$1/suture.deb"', *INSTALLED]
    subprocess.run(
        [stage.tool("mmdebstrap", "mmdebstrap"), "--quiet", "--variant=minbase",
         f"--include={','.join(INCLUDED)}",
         *(f"--dpkgopt=path-exclude={each}" for each in EXCLUDED),
         "--dpkgopt=path-include=/usr/share/doc/*/copyright",
         *(f"--customize-hook={each}" for each in steps), SUITE, scratch / LAYER],
        check=True,
    )  # fmt: skip
    return lines_of(records.read_text())


def lines_of(records: str) -> str:
    """Return name, version and SHA-256 of each package in apt's records."""
    found = set()
    for record in records.strip().split("\n\n"):
        field = dict(re.findall(r"^(Package|Version|SHA256): (.+)$", record, re.MULTILINE))
        found.add(f"{field['Package']}={field['Version']} --hash=sha256:{field['SHA256']}\n")
    return "".join(sorted(found))


if __name__ == "__main__":
    sys.exit(main())
