"""docs/operations is followed from its first page to its last, on hosts that are processes."""

import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from agent.cli.main import run
from suture.observe.events import EVENTS
from suture.runtime.exit_codes import ExitCode
from tests.support.command_line import CommandLine
from tests.support.manual.hosts import Host, Site
from tests.support.manual.reader import LISTED, Reader
from tests.support.manual.reading import MANUAL, Step, manual_text, steps
from tests.support.manual.stand_ins import STAND_INS
from tests.support.ozone.ozone_volumes import golden
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ROOT: Final = Path(__file__).resolve().parents[3]
STEPS: Final = steps(manual_text())

QUICKLY: Final = """heartbeat_interval_ms = 200
close_retry_ms = 250
heal = false
"""
"""Options of the control plane: what takes minutes takes seconds, and damage waits for a reader."""

OWN: Final = """[storage]
volumes = ["{volume}"]
reserve_bytes = 0
[scan]
watch = false
start_jitter_s = 0
[observe]
listen = "{address}:9861"
"""
"""What each host has of its own in conf.d/: they share the ports and the disk of one machine."""


@pytest.fixture
def reader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reader]:
    """A reader of the manual, whose hosts end with the test."""
    made = Reader(tmp_path, capsys, monkeypatch)
    try:
        yield made
    finally:
        made.site.stop()


def test_every_command_is_typed_and_works(reader: Reader) -> None:
    """
    In the order of the manual, over mutual TLS from its second chapter on: each command works and
    shows the columns that the manual shows. None is left out but those that are listed.
    """
    chapters = list(dict.fromkeys(step.chapter for step in STEPS))
    for chapter in chapters:
        own = [step for step in STEPS if step.chapter == chapter]
        CHAPTERS.get(chapter, as_written)(reader, own)

    assert {step.command for step in STEPS if step.command} <= set(reader.typed)
    assert CHAPTERS.keys() <= set(chapters)


def test_excused_commands_still_appear_in_the_manual() -> None:
    """Every command excused from being run still stands in the manual."""
    assert LISTED.keys() <= {step.command for step in STEPS}


def test_every_pattern_finds_what_is_logged() -> None:
    """A pattern that the manual greps for in the journal is an event or a field of the log."""
    patterns = [
        shlex.split(step.command)[-1]
        for step in STEPS
        if step.command.startswith("journalctl") and "--grep" in step.command
    ]

    named = [pattern for pattern in patterns if re.fullmatch(r"[a-z_]+", pattern)]
    assert named
    assert all(any(pattern in event for event in EVENTS) for pattern in named)


Own = Sequence[Step]


def as_written(reader: Reader, own: Own) -> None:
    """Follow a chapter that needs nothing else."""
    for step in own:
        reader.follow(step, reader.host)


def installed(host: Host, *, scm: str = "") -> None:
    """Have on a host what its package brings."""
    host.write("/etc/suture/agent.toml", (ROOT / "systemd" / "agent.toml").read_text())
    conf = "suture-scm-verify.conf"
    host.write(f"/usr/share/suture/{conf}", (ROOT / "systemd" / conf).read_text())
    volume = host.path("/srv") / host.name.partition(".")[0] / "vol1"
    volume.mkdir(parents=True)
    own = OWN.format(volume=volume, address=host.address)
    if scm:
        own = f'[node]\nlisten = "{host.address}:9859"\nscm = "{scm}"\n{own}'
    host.write("/etc/suture/conf.d/own.toml", own)


def install(reader: Reader, own: Own) -> None:
    """Start the agent of one host, as the package has it: another one than those of the cluster."""
    alone = Site(reader.root / "alone", hosts=1)
    [host] = alone.hosts
    installed(host, scm=f"{host.address}:9860")
    try:
        host.start("suture-scm")
        for step in own:
            reader.follow(step, host)
    finally:
        alone.stop()


def on_the_first_host(reader: Reader, own: Own) -> None:
    """Make the authority, and start the control plane."""
    for step in own:
        if step.path.endswith("scm.toml"):
            step = Step(step.chapter, path=step.path, content=QUICKLY + step.content)
        reader.follow(step, reader.host)


def on_each_host(reader: Reader, own: Own) -> None:
    """Do for each datanode what is shown for the first."""
    for host in reader.site.hosts:
        installed(host)
        if host is not reader.host:
            shutil.copytree(reader.host.home / "authority", host.home / "authority")
        for step in own:
            mine = Step(
                step.chapter,
                command=step.command.replace("datanode1", host.name.partition(".")[0]),
                shown=step.shown,
                path=step.path,
                content=step.content.replace("datanode1", host.name.partition(".")[0]),
            )
            reader.follow(mine, host)
    reader.typed += [step.command for step in own if step.command]


def the_operator(reader: Reader, own: Own) -> None:
    """Be the one person that the certificate is for."""
    [file] = own
    reader.be_at(reader.host)
    assert run(["scm", "nodes"]) in {
        ExitCode.FAILED,
        ExitCode.UNAVAILABLE,
    }  # nobody is let in without
    to = reader.host.home / ".config" / "suture" / "client.toml"
    to.parent.mkdir(parents=True)
    to.write_text(file.content)
    reader.registered(3)


def the_first_hour(reader: Reader, own: Own) -> None:
    """Store the file that the chapter names."""
    shutil.copy(ROOT / "README.md", reader.host.home)
    as_written(reader, own)
    suture, home = reader.suture, reader.host.home
    suture("put", str(home / "README.md"), "--prefix", "other/")
    erasure = ("--prefix", "coded/", "--replication", "xor-2-1-64k", "--close")
    [coded] = suture.json("put", str(home / "README.md"), *erasure)["container_ids"]

    def is_closed() -> bool:
        shards = suture.json("scm", "containers", str(coded))["replicas"]
        return ["CLOSED"] * 3 == [shard["replica"]["state"] for shard in shards]

    wait_until(is_closed)
    nodes = {node["address"]: node["datanode_id"] for node in suture.json("scm", "nodes")["nodes"]}
    reader.words |= {
        "ADDRESS": f"{reader.host.address}:9859",
        "NUMBER": "1",
        "CODED": str(coded),
        "ID": nodes[f"{reader.host.address}:9859"],
        "BUNDLE": str(reader.root / "bundle.tar.gz"),
        "DIR": str(home / "authority"),
        "NAME": reader.host.name,
        "FILE": "/etc/suture/agent.toml",
        "report.pdf": "other/README.md",
        "VOLUME": f"{reader.host.address}:9859:/srv/datanode1/vol1",
        "DIRECTORY": "/srv/datanode1/vol1",
        "DATA_DIR": "/data/ozone/dn0-damaged",
    }


def damage_and_repair(reader: Reader, own: Own) -> None:
    """Damage a replica when its container is closed; the repair makes all replicas equal again."""
    for step in own:
        reader.follow(step, reader.host)
        if step.command.startswith("suture scm close"):
            [before] = reader.suture.wait_until_closed([1])
            roots = {each["replica"]["tree"]["root"] for each in before["replicas"]}
        if step.command.startswith("suture scrub scan"):
            [finding] = reader.suture.json("findings", code=ExitCode.TO_DO)["findings"]
            assert "CHUNK_CHECKSUM" == finding["fault"]
    assert [] == reader.suture.json_any("findings")["findings"]
    after = reader.suture.wait_until_reported(1)
    assert roots == {each["replica"]["tree"]["root"] for each in after["replicas"]}


def certificates(reader: Reader, own: Own) -> None:
    """Secure another site from nothing, renew a certificate, and replace the authority."""
    site = Site(reader.root / "secured", hosts=1)
    [host] = site.hosts
    host.directory = folder = host.home / "private"
    kept, reader.words = reader.words, {"DIR": str(folder)}
    installed(host, scm=site.scm)
    try:
        for step in own:
            host.directory = folder if folder.exists() else host.home
            if step.command.startswith("editor "):
                reader.typed.append(step.command)
                edited(host, step.command.split()[1])
                control_plane_is_secured(reader, host)
            else:
                reader.follow(step, host)
        reader.registered(1, host)
        renewed(reader, host, own)
        reader.words |= {"NEW": str(host.home / "new"), "ID": only_node(reader, host)}
        for step in STEPS:
            if step.chapter == "Replace the certificate authority":
                reader.follow(step, host)
        exchanged(reader, host, host.home / "new")
    finally:
        site.stop()
        reader.words = kept


def edited(host: Host, path: str) -> None:
    """Write into an agent's file what the chapter says belongs there, and the operator's file."""
    name = host.path("/etc/suture/tls") / host.address
    ca = host.path("/etc/suture/tls") / "ca.pem"
    file = host.path(path)
    lines = f'[tls]\ncertificate = "{name}.pem"\nkey = "{name}.key"\nca = "{ca}"\n'
    file.write_text(file.read_text().replace("[tls]\n", lines))
    mine = host.home / ".config" / "suture"
    mine.mkdir(parents=True)
    for file_name in ("ada.pem", "ada.key", "ca.pem"):
        shutil.copy(host.directory / file_name, mine)
    text = (MANUAL / "certificates.md").read_text()
    (mine / "client.toml").write_text(text.partition("```toml\n")[2].partition("```")[0])


def control_plane_is_secured(reader: Reader, host: Host) -> None:
    """Start a control plane with its certificate: as on the first host of three."""
    for name in (f"{host.site.network}.1.pem", f"{host.site.network}.1.key"):
        shutil.copy(host.directory / name, host.path("/etc/suture/tls"))
    for step in STEPS:
        if step.chapter == "On the first host" and step.path:
            reader.follow(step, host)
    host.start("suture-scm")


def renewed(reader: Reader, host: Host, own: Own) -> None:
    """Issue again under the same name and put the files in their place: the log says it is good."""
    before = only_node(reader, host)
    for step in own:
        if step.command.startswith(("suture tls issue DIR --role peer", "install -m")):
            reader.follow(step, host)
    STAND_INS["systemctl"](host, ["reload", "suture-agent"])
    wait_until(lambda: "certificate_reloaded" in host.journal("suture-agent").read_text())
    assert before == only_node(reader, host)


def only_node(reader: Reader, host: Host) -> str:
    """Return the id of the one datanode of a site."""
    [node] = reader.suture_of(host).json("scm", "nodes")["nodes"]
    return str(node["datanode_id"])


def exchanged(reader: Reader, host: Host, new: Path) -> None:
    """Believe both authorities everywhere, exchange all certificates, believe the new one only."""
    tls, mine = host.path("/etc/suture/tls"), host.home / ".config" / "suture"
    scm = f"{host.site.network}.1"
    both = (tls / "ca.pem").read_text() + (new / "ca.pem").read_text()
    for authorities in (both, (new / "ca.pem").read_text()):
        for folder in (tls, mine):
            (folder / "ca.pem").write_text(authorities)
        for unit in ("suture-scm", "suture-agent"):  # new connections, that nothing old lives on
            host.stop(unit)
            host.start(unit)
        reader.registered(1, host)
        reader.suture_of(host)
        assert ExitCode.OK == run(["tls", "issue", str(new), "--role", "scm", "--host", scm])
        assert ExitCode.OK == run(["tls", "issue", str(new), "--role", "admin", "--name", "ada"])
        for name, folder in ((host.address, tls), (scm, tls), ("ada", mine)):
            for suffix in ("pem", "key"):
                shutil.copy(new / f"{name}.{suffix}", folder)
    assert reader.words["ID"] == only_node(reader, host)


def control_plane_is_lost(reader: Reader, own: Own) -> None:
    """Back up, restore, put the new state in the place of the old one, recover."""
    host, data = reader.host, reader.host.path("/var/lib/suture-scm")
    for step in own:
        if "scm recover" in step.command:
            host.stop("suture-scm")
            data.rename(data.with_name("lost"))
            data.with_name("suture-scm.new").rename(data)
            host.start("suture-scm")
            reader.registered(3)
        reader.follow(step, host)
        if "scm backup" in step.command:
            _, *words = host.command_of(
                "suture-scm-backup.service"
            )  # what the timer does each hour
            assert ExitCode.OK == run(words)
            *_, backup = sorted(data.with_name("suture-scm-backup").glob("suture-scm-*"))
            reader.words["TIME"] = backup.name.removeprefix("suture-scm-")
    reader.suture.wait_until_closed([1])


def off_the_volumes_alone(reader: Reader, own: Own) -> None:
    """With all agents stopped, get the files off two disks that were brought to the first host."""
    hosts = reader.site.hosts
    for number, host in enumerate(hosts[:2], start=1):
        host.stop("suture-agent")
        place = reader.host.path(f"/data/{number}/suture")
        place.parent.mkdir(parents=True)
        place.symlink_to(host.path(f"/srv/datanode{number}/vol1"))
    hosts[2].stop("suture-agent")
    as_written(reader, own)
    saved = reader.host.path("/mnt/rescue") / "keys" / "README.md"
    assert (ROOT / "README.md").read_bytes() == saved.read_bytes()
    for host in hosts:
        host.start("suture-agent")
    reader.registered(3)
    reader.suture.wait_until_reported(1)


def disk_is_replaced(reader: Reader, own: Own) -> None:
    """Replace one of two disks of the first host."""
    second_volume(reader, reader.host)
    as_written(reader, own)
    reader.registered(3)
    reader.suture.wait_until_reported(1)


def second_volume(reader: Reader, host: Host) -> None:
    """Give a host one more volume."""
    conf = "suture-scm-verify.conf"
    host.write(f"/usr/share/suture/{conf}", (ROOT / "systemd" / conf).read_text())
    volume = host.path("/srv") / host.name.partition(".")[0] / "vol2"
    volume.mkdir()
    reader.suture("volume", "add", str(volume), "--datanode", f"{host.address}:9859")


def parity(reader: Reader, own: Own) -> None:
    """Look at the container that is erasure-coded."""
    kept = reader.words["NUMBER"]
    reader.words["NUMBER"] = reader.words["CODED"]
    as_written(reader, own)
    reader.words["NUMBER"] = kept


def expiring(reader: Reader, own: Own) -> None:
    """Issue a certificate again, and put it in the place of the old one before it is read."""
    host = reader.host
    for step in own:
        if step.command.startswith("systemctl reload"):
            for suffix in ("pem", "key"):
                source = host.home / "authority" / f"{host.address}.{suffix}"
                shutil.copy(source, host.path("/etc/suture/tls"))
        reader.follow(step, host)
    reader.registered(3)


def ozone(reader: Reader, own: Own) -> None:
    """Scrub real volumes of Ozone on the first host."""
    host = reader.host
    if not host.is_running("suture-ozone-scrub"):
        volumes = golden(host.path("/data/ozone"))
        host.write("/etc/suture/ozone.env", f"DATA_DIRS={volumes / 'dn0-damaged'}\n")
        host.start("suture-ozone-scrub")
    kept = reader.words["ID"]
    reader.words["ID"] = "1"
    as_written(reader, own)
    reader.words["ID"] = kept


def damaged(reader: Reader, own: Own) -> None:
    """Have something to ask about: a flipped bit in one replica."""
    disks = reader.site.hosts[1].path("/srv/datanode2")
    block = next(disks.glob("vol*/hdds/*/current/containerDir*/1/chunks/*.block"))
    content = bytearray(block.read_bytes())
    content[len(content) // 2] ^= 1
    block.write_bytes(content)
    reader.suture("scrub", "scan", "1", "--wait", code=ExitCode.TO_DO)
    as_written(reader, own)


def evidence(reader: Reader, own: Own) -> None:
    """Write into another file than before."""
    reader.words["BUNDLE"] = str(reader.root / f"evidence-of-{len(reader.typed)}.tar.gz")
    as_written(reader, own)


def emptied(reader: Reader, own: Own) -> None:
    """Have something to empty a disk onto, on the second host."""
    host = reader.site.hosts[1]
    second_volume(reader, host)
    reader.words["VOLUME"] = f"{host.address}:9859:{host.path('/srv/datanode2/vol1')}"
    as_written(reader, own)


def small_site(reader: Reader, name: str, *, agents: int, hosts: int) -> Site:
    """Start a control plane and some agents without TLS, on hosts of their own."""
    site = Site(reader.root / name, hosts=hosts)
    first = site.hosts[0]
    first.write("/etc/suture/scm.env", f"LISTEN={site.scm}\n")
    for host in site.hosts:
        installed(host, scm=site.scm)
    first.start("suture-scm")
    for host in site.hosts[:agents]:
        host.start("suture-agent")
    reader.registered(agents, first)
    return site


def ten_datanodes_more(reader: Reader, own: Own) -> None:
    """Expand three datanodes to thirteen. The authority is that of the first site."""
    site = small_site(reader, "ten", agents=3, hosts=13)
    try:
        for step in own:
            if step.command.startswith("systemctl"):
                for host in site.hosts[3:]:
                    reader.follow(step, host)
                reader.registered(13, site.hosts[0])
            else:
                is_of_authority = step.command.startswith("suture tls")
                reader.follow(step, reader.host if is_of_authority else site.hosts[0])
    finally:
        site.stop()


def disks_are_moved(reader: Reader, own: Own) -> None:
    """Move the volume of the third host to a fourth. The file is read from the moved datanode's
    site, and the datanode keeps its id."""
    site = small_site(reader, "hardware", agents=3, hosts=4)
    first, old, new = site.hosts[0], site.hosts[2], site.hosts[3]
    kept, nodes = reader.words, reader.suture_of(first).json("scm", "nodes")["nodes"]
    ids = {node["address"]: node["datanode_id"] for node in nodes}
    old_address, new_address = f"{old.address}:9859", f"{new.address}:9859"
    reader.words = kept | {"ADDRESS": old_address, "ID": ids[old_address]}
    try:
        reader.suture_of(first)("put", str(ROOT / "README.md"), "--close")
        for step in own:
            if step.command.startswith("systemctl stop"):
                reader.follow(step, old)
                volume = new.path("/srv/datanode4/vol1")
                volume.rmdir()
                old.path("/srv/datanode3/vol1").rename(volume)
            elif step.command.startswith(("systemctl", "suture config")):
                reader.follow(step, new)
            else:
                is_of_authority = step.command.startswith("suture tls")
                reader.follow(step, reader.host if is_of_authority else first)
        reader.registered(3, first)
        nodes = reader.suture_of(first).json("scm", "nodes")["nodes"]
        moved = {node["datanode_id"]: node for node in nodes}[ids[old_address]]
        assert (new_address, 1) == (moved["address"], moved["container_count"])
        assert "IN_SERVICE" == moved["op_state"]
    finally:
        site.stop()
        reader.words = kept


def control_plane_moves(reader: Reader, own: Own) -> None:
    """Follow both chapters of the page on a site of one datanode, which follows to the address."""
    site = small_site(reader, "address", agents=1, hosts=1)
    [host] = site.hosts
    there = CommandLine(f"{site.network}.2:9860", reader.capsys)
    switch = [step for step in STEPS if step.chapter == "Switch to the new address"]
    try:
        for step in (*own, *switch):
            is_of_authority = step.command.startswith("suture tls")
            reader.follow(step, reader.host if is_of_authority else host)
        wait_until(lambda: "HEALTHY" == there.json("scm", "nodes")["nodes"][0]["health"])
        assert not reader.suture_of(host).json_any("scm", "nodes").get("nodes")
    finally:
        site.stop()


def already_typed(reader: Reader, own: Own) -> None:
    """Check that the chapter before has typed this chapter, too."""
    assert {step.command for step in own} <= set(reader.typed) | {""}


def site_is_switched_off_or_on(reader: Reader, own: Own) -> None:
    """Stop or start the agents of all hosts."""
    for step in own:
        is_for_all = step.command.startswith("systemctl") and "agent" in step.command
        for host in reader.site.hosts if is_for_all else [reader.host]:
            reader.follow(step, host)
        if is_for_all and "start" in step.command:
            reader.registered(3)
    is_on = reader.host.is_running("suture-scm")
    assert [is_on] * 3 == [host.is_running("suture-agent") for host in reader.site.hosts]


CHAPTERS: Final[dict[str, Callable[[Reader, Own], None]]] = {
    "Install": install,
    "On the first host": on_the_first_host,
    "On each host": on_each_host,
    "On the operator's machine": the_operator,
    "The first hour": the_first_hour,
    "Damage and repair": damage_and_repair,
    "Certificates": certificates,
    "Replace the certificate authority": already_typed,
    "Add ten datanodes": ten_datanodes_more,
    "Move the disks to new hardware": disks_are_moved,
    "Announce the new address": control_plane_moves,
    "Switch to the new address": already_typed,
    "Shut down the site": site_is_switched_off_or_on,
    "Start the site": site_is_switched_off_or_on,
    "Restore the control plane's state": control_plane_is_lost,
    "Recover files from volumes": off_the_volumes_alone,
    "Replace a disk": disk_is_replaced,
    "SutureParityMismatch": parity,
    "SutureCertificateExpiring": expiring,
    "SutureOzoneDown": ozone,
    "SutureOzoneDamage": ozone,
    "SutureOzoneContainersUnreadable": ozone,
    "SutureOzoneScanLate": ozone,
    "SutureOzoneScanFailing": ozone,
    "SutureOzoneVolumeMissing": ozone,
    "Is my data whole?": damaged,
    "Collect evidence for a bug report.": evidence,
    "SutureShadowHashMismatch": evidence,
    "SutureVolumeSlow": evidence,
    "Make a volume read-only.": emptied,
}
"""Chapters for which something must be there first, or be done between two commands."""
