"""Try the RPM package: dependencies, contents, scriptlets, and the installed programs.

    python tools/try_rpm.py dist/suture-*.rpm [--newer PACKAGE] [--suite trixie] [--base DIR]

The host is a Debian root, into which this machine's rpm installs; a package declares there that the
host has systemd and its Python, and has the link of that Python. A control plane and an agent are
started by the commands of the units and connect. Python's package is installed once more, for which
the environment is made again. The package is upgraded to --newer and downgraded again, removed and
installed again, and the datanode is the same each time. Needs root, mmdebstrap, rpm, and minutes.
Exit code 1, with the reason, if something is wrong.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a bare checkout, nothing installed

from tools.packages import stage  # noqa: E402
from tools.packages.hosts import Fault, Host, a_host, made, run, this_suite  # noqa: E402

START_S = 60
HOST_SPEC = """\
Name: the-host
Version: 1
Release: 1
Summary: What this host has
License: none
BuildArch: noarch
Provides: {provides}
%description
What this host has.
%install
mkdir -p %{{buildroot}}/usr/bin
ln -s {python} %{{buildroot}}/usr/bin/python3
%files
/usr/bin/python3
"""
GONE = (
    "opt/suture",
    "usr/share/doc/suture",
    "usr/bin/suture",
    "usr/lib/systemd/system/suture-agent.service",
)


def main() -> int:
    """Try the package; print the steps and their output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("package", type=Path, help="the .rpm")
    parser.add_argument("--newer", type=Path, help="another version of it, to upgrade to")
    parser.add_argument("--suite", default=this_suite(), help="the release of the host")
    parser.add_argument("--base", type=Path, help="default: /var/tmp/suture-try-SUITE")
    arguments = parser.parse_args()
    base = arguments.base or Path(f"/var/tmp/suture-try-{arguments.suite}")  # noqa: S108
    try:
        with ExitStack() as stack:
            host = stack.enter_context(a_host(made(base, arguments.suite), 1))
            tried(host, arguments.package, arguments.newer)
    except Fault as fault:
        print(f"try_rpm: {fault}", file=sys.stderr)
        return 1
    changes = "upgraded, downgraded, " if arguments.newer else ""
    print(f"try_rpm: installed, used, {changes}removed and installed again")
    return 0


def tried(host: Host, package: Path, newer: Path | None) -> None:
    """Install, use, upgrade, downgrade, remove and reinstall the package. Raise Fault if a result
    is wrong."""
    python = host.run("python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'").strip()
    said(host, "--initdb")
    asked = said(host, "--install", package, expected=1)
    for needed in (f"python(abi) = {python}", "systemd"):
        if needed not in asked:
            raise Fault(f"the package does not ask for {needed}:\n{asked}")
    needs = ("systemd", "util-linux", "coreutils", "/bin/sh", f"python(abi) = {python}")
    with tempfile.TemporaryDirectory() as scratch:
        the_host = package_of(", ".join(needs), f"python{python}", Path(scratch))
        said(host, "--install", the_host)
        said(host, "--install", package)
        said(host, "--verify", "suture")
        datanode_id = registered(host)
        host.run("rm /opt/suture/venv")
        said(host, "--reinstall", the_host)
    if not (host.root / "opt/suture/venv").is_symlink():
        raise Fault("the environment is not made again after a change of Python")
    for each in (newer, package) if newer else ():
        said(host, "--upgrade", "--oldpackage", each)
        version = said(host, "--query", "--queryformat", "%{NAME} %{VERSION}\n", "suture")
        if datanode_id != registered(host) or host.run("suture --version") != version:
            raise Fault(f"datanode or version is not right after the change to {each.name}")
    said(host, "--erase", "suture")
    left = [name for name in GONE if (host.root / name).exists()]
    if left:
        raise Fault(f"removing leaves {left}")
    said(host, "--install", package)
    if datanode_id != registered(host):
        raise Fault("the datanode is another one after the package was removed and installed")


def package_of(provided: str, python: str, scratch: Path) -> Path:
    """Build a package that provides capabilities and contains the link of a Python; return its
    path."""
    spec = scratch / "the-host.spec"
    spec.write_text(HOST_SPEC.format(provides=provided, python=python))
    run(
        stage.tool("rpmbuild", "rpm"), "-bb", "--quiet", f"--define=_topdir {scratch}",
        f"--define=_rpmdir {scratch}", "--define=_rpmfilename the-host.rpm", spec,
    )  # fmt: skip
    return scratch / "the-host.rpm"


def registered(host: Host) -> str:
    """Start control plane and agent, wait until they are connected, and stop them.

    Return the datanode's id. Raise Fault.
    """
    host.start("suture-scm.service")
    host.start("suture-agent.service")
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        nodes = json.loads(host.run("suture scm nodes --json"))["nodes"]
        if [node["health"] for node in nodes] == ["HEALTHY"]:
            print(f"# suture scm nodes\n{host.run('suture scm nodes')}", end="", flush=True)
            host.stop()
            return str(nodes[0]["datanode_id"])
        time.sleep(0.5)
    raise Fault(f"the datanode does not register within {START_S} s")


def said(host: Host, *words: str | Path, expected: int = 0) -> str:
    """Run this machine's rpm on the host's root; return its output. Raise Fault if the exit code is
    not `expected`."""
    rpm = shutil.which("rpm")
    if rpm is None:
        raise Fault("rpm is needed and not here; on Debian: apt-get install rpm")
    command = [rpm, "--root", host.root, "--dbpath", "/var/lib/rpm", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    printed = done.stdout + done.stderr
    shown = " ".join(str(word) for word in words)
    print(f"# rpm {shown}\n{printed}", end="", flush=True)
    if done.returncode != expected or "scriptlet failed" in printed:
        raise Fault(f"rpm {shown}: exit code {done.returncode}\n{printed}")
    return printed


if __name__ == "__main__":
    sys.exit(main())
