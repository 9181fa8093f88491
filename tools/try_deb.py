"""Try the Debian packages like their user: three hosts, the first hour, then remove them.

    python tools/try_deb.py dist/suture_*.deb [--bill FILE] [--newer PACKAGE] [--verify PACKAGE]
                            [--suite trixie] [--base DIR]

A host is a Debian root: created once by mmdebstrap below --base, with an overlay for each host. No
systemd runs in a root, so the commands of the units are started by hand, as the user and with the
folders that the units name; each host has its own loopback address. The commands come from the page
operations/three-hosts.md, which ends with a repair. Then the package is upgraded to
--newer and downgraded again, host by host, and --verify is installed with a Java from the suite's
archive and compares the replicas. Needs root, mmdebstrap, and minutes. Exit code 1, with the
reason, if something is not as documented.
"""

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a bare checkout, nothing installed

from tools.packages.contents import unlisted  # noqa: E402
from tools.packages.hosts import Fault, Host, a_host, made, this_suite  # noqa: E402

HOST_COUNT = 3
README = "usr/share/doc/suture/README.md"
PAGE = ROOT / "docs/operations/three-hosts.md"
SCM = "--scm scm.example.org:9860"
STEP = re.compile(  # a file and its content, or commands and their output
    r"^`(/[^`]+)`[^\n]*:\n\n```(sh|toml)\n(.*?)```|^```console\n(.*?)```", re.DOTALL | re.MULTILINE
)
VARYING = {"starting", "waiting", "never"}  # states of a scan, which begins at its own time
START_S = 60
PARTS = ("packages installed", "cluster built", "file stored and shown", "damage repaired")
GONE = ("opt/suture/venv", "opt/suture/environments", "usr/bin/suture",
        "lib/systemd/system/suture-agent.service", "usr/share/man/man1/suture.1.gz")  # fmt: skip


def main() -> int:
    """Try the packages; print the commands and their output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("package", type=Path, help="the .deb of the agent")
    parser.add_argument("--bill", type=Path, help="its bill of materials, to compare")
    parser.add_argument("--newer", type=Path, help="another version of it, to upgrade to")
    parser.add_argument("--verify", type=Path, help="the .deb of the Spark job, to run")
    parser.add_argument("--suite", default=this_suite(), help="the release of the hosts")
    parser.add_argument("--base", type=Path, help="default: /var/tmp/suture-try-SUITE")
    arguments = parser.parse_args()
    base = arguments.base or Path(f"/var/tmp/suture-try-{arguments.suite}")  # noqa: S108
    package: Path = arguments.package
    try:
        with ExitStack() as stack:
            hosts = [
                stack.enter_context(a_host(made(base, arguments.suite), number))
                for number in range(1, HOST_COUNT + 1)
            ]
            first_hour(hosts, package)
            if arguments.bill:
                listed(hosts[0], arguments.bill)
            if arguments.newer:
                for each in (arguments.newer, package):
                    changed(hosts, each)
            if arguments.verify:
                verified(hosts, arguments.verify)
            reinstalled(hosts)
    except Fault as fault:
        print(f"try_deb: {fault}", file=sys.stderr)
        return 1
    print("try_deb: installed, used, removed and purged on three hosts")
    return 0


def first_hour(hosts: Sequence[Host], package: Path) -> None:
    """Follow the manual's page about three hosts to its end; print the duration of each part. Raise
    Fault if a result differs."""
    begun_s = [time.monotonic()]
    for host in hosts:
        shutil.copy(package, host.root / "root")
        shutil.copy(package, host.root / "suture.deb")
        follow(host, re.sub(r"suture_\S+\.deb", package.name, part("## Install the package")))
    begun_s.append(time.monotonic())
    built(hosts)
    shutil.copy(hosts[0].root / README, hosts[0].root / "root/README.md")
    registered(hosts[0])
    begun_s.append(time.monotonic())
    follow(hosts[0], part("## The first hour"))
    begun_s.append(time.monotonic())
    follow(hosts[0], part("## Damage and repair"))
    healed(hosts[0])
    begun_s.append(time.monotonic())
    for what, start_s, end_s in zip(PARTS, begun_s, begun_s[1:], strict=False):
        print(f"try_deb: {what}: {end_s - start_s:.0f} s", flush=True)


def healed(operator: Host) -> None:
    """Check that container 1 is intact on all hosts, and its file unchanged. Raise Fault if not."""
    findings = json.loads(operator.run(f"suture findings --json {SCM}"))["findings"]
    if findings or not is_closed(operator):
        raise Fault(f"the damage is not healed: {findings}")
    stored(operator)


def stored(operator: Host) -> None:
    """Check that the stored file reads back unchanged. Raise Fault if not."""
    there = (operator.root / "root/README.md").read_text()
    if there != operator.run(f"suture get README.md {SCM}"):
        raise Fault("README.md is not what was stored")


def listed(host: Host, bill: Path) -> None:
    """Compare the files on a host with a bill of materials. Raise Fault if a file is not in it."""
    missing = unlisted(host.root, bill.read_text())
    if missing:
        raise Fault(f"{bill.name} does not have {missing}")


def changed(hosts: Sequence[Host], package: Path) -> None:
    """Install another version of the package, host by host, while the other hosts serve. Raise
    Fault if the cluster does not work afterwards."""
    for host in hosts:
        shutil.copy(package, host.root / "suture.deb")
        shown(host, "dpkg --install /suture.deb")
        host.stop()
        started([host], scm=host is hosts[0])
        registered(hosts[0])
        stored(hosts[0])
    of_one_version(hosts[0])


def of_one_version(host: Host) -> None:
    """Check that all programs have the version of the host's package. Raise Fault if not."""
    told = json.loads(host.run(f"suture versions --json {SCM}"))
    version = shown(host, "dpkg-query --show --showformat '${Version}\\n' suture").strip()
    if told["is_mixed"] or {each["version"] for each in told["programs"]} != {version}:
        raise Fault(f"the programs are not all of version {version}: {told}")


def verified(hosts: Sequence[Host], package: Path) -> None:
    """Install the Spark job with a Java beside the control plane, compare the replicas, and purge
    it. Raise Fault."""
    host = hosts[0]
    shutil.copy(package, host.root / "suture-verify.deb")
    host.run("apt-get update")
    shown(host, "apt-get install --yes --no-install-recommends /suture-verify.deb")
    host.stop()
    started([host], scm=True)  # it writes snapshots from now on
    registered(host)
    shown(host, f'suture-verify "$(suture scm snapshot {SCM})" --out results', folder="~")
    [summary] = (host.root / "root/results").glob("run_id=*/summary.json")
    print(summary.read_text())
    if not (summary.parent / "_SUCCESS").exists():
        raise Fault("the verification has no result")
    shown(host, "dpkg --purge suture-verify")


def reinstalled(hosts: Sequence[Host]) -> None:
    """Remove the package, install it again, and purge it. Raise Fault."""
    datanode_ids = [identity(host, hosts[0]) for host in hosts]
    for host in hosts:
        host.stop()
        removed(host)
        shown(host, "dpkg --install /suture.deb")
    started(hosts)
    registered(hosts[0])
    if datanode_ids != [identity(host, hosts[0]) for host in hosts]:
        raise Fault("a datanode is another one after the package was removed and installed")
    stored(hosts[0])
    for host in hosts:
        host.stop()
        shown(host, "dpkg --purge suture")
        if (host.root / "etc/suture/agent.toml").exists():
            raise Fault("purging leaves /etc/suture/agent.toml")
        if not (host.root / "var/lib/suture/volume1/hdds").is_dir():
            raise Fault("purging took the data away")


def built(hosts: Sequence[Host]) -> None:
    """Build the cluster as the page of the three hosts says. Raise Fault."""
    separated(hosts)
    follow(hosts[0], part("## On the first host"))
    for host in hosts:
        if host is not hosts[0]:
            shutil.copytree(hosts[0].root / "root/authority", host.root / "root/authority")
        follow(host, part("## On each host").replace("datanode1.example.org", host.name))
    follow(hosts[0], part("## On the operator's machine"))


def separated(hosts: Sequence[Host]) -> None:
    """Give the hosts, which share one machine's ports, their own names and addresses."""
    for host in hosts:
        with (host.root / "etc/hosts").open("a") as names:
            names.write(f"127.0.0.1 localhost\n{hosts[0].address} scm.example.org\n")
            names.writelines(f"{h.address} {h.name}\n" for h in hosts)
        own = host.root / "etc/suture/conf.d/try.toml"
        own.parent.mkdir(parents=True)
        own.write_text(f'[observe]\nlisten = "{host.address}:9861"\n')


def follow(host: Host, text: str) -> None:
    """Write the files and run the commands of a part of the manual. Raise Fault."""
    for path, _, content, commands in STEP.findall(text):
        if path:
            file = host.root / path.removeprefix("/")
            file.parent.mkdir(exist_ok=True)
            file.write_text(content)
            continue
        for step in filter(None, re.split(r"^(?=[$#] )", commands, flags=re.MULTILINE)):
            command, _, expected = step[2:].partition("\n")
            unit = command.removeprefix("systemctl enable --now ")
            if unit != command:
                host.start(f"{unit}.service")
                continue
            missing = words_of(expected) - words_of(shown(host, command, folder="~")) - VARYING
            if missing:
                raise Fault(f"{command}: the manual shows {sorted(missing)}, too")
            if command.startswith("suture scm close"):
                wait_until(lambda: is_closed(host), "container 1 does not close")


def part(heading: str) -> str:
    """Return the text below a heading of the page. Raise Fault."""
    text = PAGE.read_text().partition(f"\n{heading}\n")[2]
    if not text:
        raise Fault(f"the page has no {heading}")
    return text.partition("\n## ")[0]


def started(hosts: Sequence[Host], *, scm: bool = True) -> None:
    """Start the control plane on the first host, and an agent on each."""
    if scm:
        hosts[0].start("suture-scm.service")
    for host in hosts:
        host.start("suture-agent.service")


def registered(operator: Host) -> None:
    """Wait until the control plane lists all hosts as healthy. Raise Fault if this takes too
    long."""

    def is_so() -> bool:
        nodes = json.loads(operator.run(f"suture scm nodes --json {SCM}"))["nodes"]
        return bool([node["health"] for node in nodes] == ["HEALTHY"] * HOST_COUNT)

    wait_until(is_so, "not every datanode registers")


def is_closed(operator: Host) -> bool:
    """Return True if container 1 is closed on every host."""
    [container] = json.loads(operator.run(f"suture scm containers --json {SCM}"))["containers"]
    return (container["state"], container["checksums"]) == ("CLOSED", "match")


def wait_until(condition: Callable[[], bool], fault: str) -> None:
    """Poll a condition of the cluster until it is true. Raise Fault if it does not become true
    within START_S."""
    deadline_s = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise Fault(f"{fault} within {START_S} s")
        time.sleep(0.5)


def removed(host: Host) -> None:
    """Remove the package. Raise Fault if a program remains, or if the options are removed."""
    shown(host, "dpkg --remove suture")
    left = [name for name in GONE if (host.root / name).exists()]
    if left:
        raise Fault(f"removing leaves {left}")
    if not (host.root / "etc/suture/agent.toml").exists():
        raise Fault("removing took the options away")


def identity(host: Host, operator: Host) -> str:
    """Return the id of a host's datanode, as the datanode reports it."""
    told = operator.run(f"suture status --datanode {host.name}:9859 --json")
    return str(json.loads(told)["datanode_id"])


def shown(host: Host, command: str, *, folder: str = "/") -> str:
    """Run a command, and print it with its output."""
    printed = host.run(f"cd {folder} && {command}")
    print(f"{host.name} # {command}\n{printed}", end="", flush=True)
    return printed


def words_of(text: str) -> set[str]:
    """Return the words of a text with at least four letters, which do not vary between runs."""
    return set(re.findall(r"[a-zA-Z]{4,}", text))


if __name__ == "__main__":
    sys.exit(main())
