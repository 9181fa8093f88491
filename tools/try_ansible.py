"""Try the Ansible role like its user: a cluster of three hosts, a second run, and an upgrade.

    python tools/try_ansible.py dist/suture_*.deb [--newer PACKAGE] [--suite trixie] [--base DIR]

The hosts are the Debian roots of try_deb.py, where no systemd runs: Ansible enables the units, and
this program starts their commands. Ansible connects with a stand-in for ssh, which enters the root
of the host. The role must write the files of the page operations/three-hosts.md, a file must be
stored, and a second run must change nothing. A run without the authority must not create another
one. Then the package is upgraded to --newer. Needs root, mmdebstrap, and the network for
ansible-core and for the package python3-apt. Exit code 1, with the reason, if something is not as
documented.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a bare checkout, nothing installed

from tools import try_deb  # noqa: E402
from tools.packages.hosts import Fault, Host, a_host, made, run, this_suite  # noqa: E402

DEPLOY = ROOT / "deploy/ansible"
ANSIBLE = "ansible-core>=2.19,<2.22"
SSH = """\
#!/bin/sh
# The last two words are the host, which is a root directory, and the command.
for word; do root=$command; command=$word; done
exec env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" /bin/sh -c "$command"
"""
RECAP = re.compile(r"^(\S+) +: ok=\d+ +changed=(\d+) +unreachable=0 +failed=0 ", re.MULTILINE)
INSTALLED = re.compile(r"^# install -[dm] .*(0\d+) -o (\w+) -g (\w+) (.+)$", re.MULTILINE)


def main() -> int:
    """Try the role; print the output of Ansible, and the duration of each part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("package", type=Path, help="the .deb of the agent")
    parser.add_argument("--newer", type=Path, help="another version of it, to upgrade to")
    parser.add_argument("--suite", default=this_suite(), help="the release of the hosts")
    parser.add_argument("--base", type=Path, help="default: /var/tmp/suture-try-SUITE")
    arguments = parser.parse_args()
    base = arguments.base or Path(f"/var/tmp/suture-try-{arguments.suite}")  # noqa: S108
    try:
        with ExitStack() as stack:
            scratch = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="suture-ansible-"))
            )
            hosts = [
                stack.enter_context(a_host(made(base, arguments.suite), number))
                for number in range(1, try_deb.HOST_COUNT + 1)
            ]
            prepare(hosts, scratch)
            deployed(hosts, scratch, arguments.package)
            authority_lost(hosts[0], scratch, arguments.package)
            if arguments.newer:
                upgraded(hosts, scratch, arguments.newer)
            for host in hosts:
                host.stop()
    except Fault as fault:
        print(f"try_ansible: {fault}", file=sys.stderr)
        return 1
    print("try_ansible: installed, used and run again on three hosts")
    return 0


def prepare(hosts: Sequence[Host], scratch: Path) -> None:
    """Install Ansible in an environment of its own, and write how it connects to the hosts."""
    venv.create(scratch / "venv", with_pip=True)
    run(scratch / "venv/bin/pip", "install", "--quiet", ANSIBLE)
    ssh = scratch / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o700)
    connection = {
        "ansible_ssh_executable": str(ssh),
        "ansible_ssh_transfer_method": "piped",
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_pipelining": True,
    }
    inventory = {
        "all": {
            "vars": connection,
            "hosts": {host.name: {"ansible_host": str(host.root)} for host in hosts},
        }
    }
    (scratch / "hosts.json").write_text(json.dumps(inventory))


def deployed(hosts: Sequence[Host], scratch: Path, package: Path) -> None:
    """Deploy the cluster, use it, and deploy it again. Raise Fault if a result differs."""
    try_deb.separated(hosts)
    play(scratch, package, "first run")
    as_documented(hosts)
    begun_s = time.monotonic()
    try_deb.started(hosts)
    try_deb.follow(hosts[0], try_deb.part("## On the operator's machine"))
    shutil.copy(hosts[0].root / try_deb.README, hosts[0].root / "root/README.md")
    try_deb.registered(hosts[0])
    try_deb.follow(hosts[0], try_deb.part("## The first hour"))
    try_deb.stored(hosts[0])
    print(f"try_ansible: file stored and shown: {time.monotonic() - begun_s:.0f} s", flush=True)
    unchanged(scratch, package)


def authority_lost(host: Host, scratch: Path, package: Path) -> None:
    """Run the playbook without the authority. Raise Fault if the role creates another authority,
    which no host trusts and which does not know the ids of the datanodes."""
    authority = host.root / "root/authority"
    kept = authority.rename(authority.with_name("kept"))
    with suppress(Fault):
        play(scratch, package, "run without the authority")
    if authority.exists():
        raise Fault("the role creates another authority")
    kept.rename(authority)


def upgraded(hosts: Sequence[Host], scratch: Path, package: Path) -> None:
    """Upgrade the package, and restart the programs. Raise Fault if the old programs run."""
    if not all(play(scratch, package, "upgrade").values()):
        raise Fault("the upgrade does not change every host")
    for host in hosts:
        host.stop()
    try_deb.started(hosts)
    try_deb.registered(hosts[0])
    try_deb.stored(hosts[0])
    try_deb.of_one_version(hosts[0])
    unchanged(scratch, package)


def unchanged(scratch: Path, package: Path) -> None:
    """Run the playbook again. Raise Fault if the run changes something."""
    if any(changes := play(scratch, package, "second run").values()):
        raise Fault(f"a second run changes something: {list(changes)}")


def play(scratch: Path, package: Path, what: str) -> dict[str, int]:
    """Run the playbook, and print its output and duration; return the number of changes of each
    host. Raise Fault if a task fails."""
    begun_s = time.monotonic()
    done = subprocess.run(
        [scratch / "venv/bin/ansible-playbook", DEPLOY / "site.yml",
         "--inventory", DEPLOY / "inventory.yml", "--inventory", scratch / "hosts.json",
         "--extra-vars", json.dumps({"suture_package": str(package.resolve())})],
        capture_output=True,
        text=True,
        env={"HOME": str(scratch), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    print(done.stdout, end="")
    changes = {host: int(count) for host, count in RECAP.findall(done.stdout)}
    if done.returncode != 0 or len(changes) != try_deb.HOST_COUNT:
        raise Fault(f"ansible-playbook: exit code {done.returncode}\n{done.stderr}")
    print(f"try_ansible: {what}: {time.monotonic() - begun_s:.0f} s", flush=True)
    return changes


def as_documented(hosts: Sequence[Host]) -> None:
    """Compare the files of the hosts with the page, and check that the units are enabled. Raise
    Fault if a host differs."""
    hosts[0].run("systemctl is-enabled suture-scm")
    for host in hosts:
        host.run("systemctl is-enabled suture-agent")
        chapters = "## On the first host", "## On each host"
        for heading in chapters if host is hosts[0] else chapters[1:]:
            text = try_deb.part(heading).replace("datanode1.example.org", host.name)
            for path, _, content, _ in try_deb.STEP.findall(text):
                if path and content != (host.root / path.removeprefix("/")).read_text():
                    raise Fault(f"{host.name}: {path} is not as documented")
            for *modes, words in INSTALLED.findall(text):
                *names, folder = words.split()
                for name in names or [""]:
                    path = f"{folder}/{Path(name).name}"
                    printed = host.run(f"stat --format '0%a %U %G' {path}").split()
                    if printed != modes:
                        raise Fault(f"{host.name}: {path} has {printed}, not {modes}")


if __name__ == "__main__":
    sys.exit(main())
