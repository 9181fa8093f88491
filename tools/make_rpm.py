"""Build the RPM packages: the same files and scripts as in Debian's.

    python tools/make_rpm.py [--out DIR]

Needs rpmbuild. The host's Python must be one of those with wheels; when it changes, a file trigger
recreates the virtual environment.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a bare checkout, nothing installed

from tools.packages import scripts, stage  # noqa: E402
from tools.packages.wheels import PYTHONS  # noqa: E402

# AutoReqProv: our libraries are private; nothing is required by, or provided from, the wheels.
SPEC = """\
Name: suture
Version: {version}
Release: 1
Summary: {summary}
License: Apache-2.0
AutoReqProv: no
Requires: ({pythons})
Requires: systemd, util-linux, coreutils, /bin/sh
%global __os_install_post %{{nil}}
%global _build_id_links none
%global _binary_payload w9.zstdio
%description
The agent of a storage host, a reference control plane, and the command line.
It makes a virtual environment of its own under /opt/suture.
%install
cp -a {root}/. %{{buildroot}}/
%post
set -e
{installed}
%preun
set -e
if [ "$1" = 0 ]; then
{removing}fi
%postun
set -e
{removed}
%transfiletriggerin -- /usr/bin/python3
set -e
{python_changed}
%transfiletriggerpostun -- /usr/bin/python3
set -e
{python_changed}
%files
%defattr(-,root,root,-)
{files}
"""
VERIFY_SPEC = """\
Name: suture-verify
Version: {version}
Release: 1
Summary: {summary}
License: Apache-2.0
AutoReqProv: no
Requires: suture = {version}-1
Requires: java-headless >= 1:17
%global __os_install_post %{{nil}}
%global _build_id_links none
%global _binary_payload w9.zstdio
%description
PySpark for the environment of the package suture, and a timer that verifies every day.
%install
cp -a {root}/. %{{buildroot}}/
%post
set -e
{installed}
%preun
set -e
if [ "$1" = 0 ]; then
{removing}fi
%postun
set -e
{removed}
%files
%defattr(-,root,root,-)
{files}
"""
REPRODUCIBLE = (
    "_buildhost suture",
    "use_source_date_epoch_as_buildtime 1",
    "clamp_mtime_to_source_date_epoch 1",
    "build_mtime_policy clamp_to_source_date_epoch",
)
"""Macros that make two builds equal; rpm 4.20 replaced the third by the fourth."""


def main() -> int:
    """Stage the files, then pack them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory of the package")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="suture-rpm-") as scratch:
        for path in packages(Path(scratch), arguments.out):
            print(path)
    return 0


def packages(scratch: Path, out: Path) -> list[Path]:
    """Build both packages in `out`; return their paths. The staged files stay in `scratch`."""
    rpmbuild = stage.tool("rpmbuild", "rpm")
    roots = stage.stage(scratch, stage.RPM)
    texts = (spec(roots["suture"]), verify_spec(roots[stage.VERIFY]))
    return [packed(rpmbuild, text, scratch, out) for text in texts]


def verify_spec(root: Path) -> str:
    """Return the spec file of `suture-verify` for a staged tree."""
    return VERIFY_SPEC.format(
        version=stage.PROJECT["version"],
        summary=stage.VERIFY_DESCRIPTION,
        root=root,
        installed=scripts.VERIFY_INSTALLED,
        removing=scripts.indented(scripts.VERIFY_REMOVING),
        removed=scripts.VERIFY_REMOVED,
        files="\n".join(listed(root)),
    )


def spec(root: Path) -> str:
    """Return the spec file of `suture` for a staged tree."""
    return SPEC.format(
        version=stage.PROJECT["version"],
        summary=stage.DESCRIPTION,
        pythons=" or ".join(f"python(abi) = {python}" for python in PYTHONS),
        root=root,
        installed=scripts.INSTALLED,
        removing=scripts.indented(scripts.REMOVING),
        removed=scripts.REMOVED,
        python_changed=scripts.PYTHON_CHANGED,
        files="\n".join(listed(root)),
    )


def listed(root: Path) -> list[str]:
    """Return the lines of the section %files: all files and links, with marks for options and
    documents, and the folders that only this package has. The folder of the options is left out, so
    that it remains when the package is removed.
    """
    lines = []
    for folder, _, names in sorted(os.walk(root)):
        where = Path(folder).relative_to(root)
        if {"suture", stage.VERIFY} & set(where.parts) and where != stage.OPTIONS.parent:
            lines.append(f"%dir /{where}")
        for name in sorted(names):
            path = where / name
            kind = ""
            if path == stage.OPTIONS:
                kind = "%config(noreplace) %attr(0640,root,root) %verify(not group) "
            elif path.is_relative_to("usr/share/doc"):
                kind = "%doc "
            lines.append(f"{kind}/{path}")
    return lines


def packed(rpmbuild: str, text: str, scratch: Path, out: Path) -> Path:
    """Build the package; return its path."""
    name = text.partition("\n")[0].removeprefix("Name: ")
    file = scratch / f"{name}.spec"
    file.write_text(text)
    machine = platform.machine()
    target = out / f"{name}-{stage.PROJECT['version']}-1.{machine}.rpm"
    subprocess.run(
        [rpmbuild, "-bb", "--quiet", f"--target={machine}", f"--define=_topdir {scratch}/rpmbuild",
         f"--define=_rpmdir {out}", f"--define=_rpmfilename {target.name}",
         *(f"--define={macro}" for macro in REPRODUCIBLE), file],
        check=True,
    )  # fmt: skip
    return target


if __name__ == "__main__":
    sys.exit(main())
