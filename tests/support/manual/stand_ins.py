"""Replacements of the manual's commands that need root, systemd or a disk.

- systemctl starts, stops, reloads or queries the process of the unit.
- journalctl prints the stderr of the unit's process, by the options that the manual uses.
- install is the real one, without owner and group.
- curl sends an HTTP request.
- umount and mount move the directory away, and replace it by an empty one.
- cat prints a file.
- shred is the real one, on the only volume of the host.
"""

import re
import subprocess
from collections.abc import Callable, Sequence
from typing import Final

from tests.support.manual.hosts import Host

StandIn = Callable[[Host, Sequence[str]], str]


def systemctl(host: Host, words: Sequence[str]) -> str:
    """Start, stop, restart, reload or show a unit."""
    verb, unit = words[0], words[-1]
    if verb == "daemon-reload":
        return ""  # a unit's files are read at each start anyway
    if unit.endswith(".timer"):  # its hour does not come here; what it would start is looked up
        assert host.command_of(unit.replace(".timer", ".service"))
        return f"{unit}: active (waiting)"
    match verb:
        case "enable" | "start":
            assert "--now" in words or verb == "start"
            host.start(unit)
        case "stop":
            host.stop(unit)
            return f"{unit}: inactive (dead)"
        case "restart":
            if host.is_running(unit):
                host.stop(unit)
            host.start(unit)
        case "reload":
            host.reload(unit)
        case "status":
            pass
        case _:
            raise AssertionError(f"systemctl {verb} stands for nothing")
    assert host.is_running(unit), f"{unit} does not run"
    return f"{unit}: active (running)"


def journalctl(host: Host, words: Sequence[str]) -> str:
    """Return the lines of a unit's journal. A pattern is matched against each line."""
    asked = dict(zip(words[::2], words[1::2], strict=True))  # each of them takes a value
    assert asked.keys() <= {"--unit", "--since", "--priority", "--grep", "--lines"}, words
    pattern = re.compile(asked.get("--grep", ""))
    found = [line for line in host.events(asked["--unit"]) if pattern.search(line)]
    return "\n".join(found[-int(asked.get("--lines", "1000")) :])


def install(host: Host, words: Sequence[str]) -> str:
    """Copy files to their destinations, as the user who runs the tests."""
    kept = list(words)
    for option in {"-o", "-g"} & {*words}:
        place = kept.index(option)
        del kept[place : place + 2]
    subprocess.run(["install", *kept], cwd=host.directory, check=True)  # noqa: S607 - the system's
    return ""


def curl(host: Host, words: Sequence[str]) -> str:
    """Ask a page of this host."""
    page = re.fullmatch(rf"http://{re.escape(host.address)}:(\S+)", words[-1])
    assert page is not None, words
    said = host.answers(page[1])
    assert said, words
    return said


def cat(_host: Host, words: Sequence[str]) -> str:
    """Read a file."""
    return subprocess.run(["cat", *words], check=True, capture_output=True, text=True).stdout  # noqa: S607


def umount(host: Host, words: Sequence[str]) -> str:
    """Move a directory away, as if its disk had been removed."""
    place = host.path(words[0])
    place.rename(place.with_name(f"{place.name}.pulled"))
    return ""


def mount(host: Host, words: Sequence[str]) -> str:
    """Create an empty directory, like the root of a new disk."""
    host.path(words[0]).mkdir()
    return ""


def shred(host: Host, words: Sequence[str]) -> str:
    """Overwrite bytes of a file whose name is a pattern."""
    *options, pattern = words
    name = pattern.partition("/volume1/")[2]
    [file] = host.path("/srv").glob(f"{host.name.partition('.')[0]}/vol1/{name}")
    subprocess.run(["shred", *options, file], check=True)  # noqa: S607 - the system's
    return ""


STAND_INS: Final[dict[str, StandIn]] = {
    "systemctl": systemctl,
    "journalctl": journalctl,
    "install": install,
    "curl": curl,
    "cat": cat,
    "shred": shred,
    "umount": umount,
    "mount": mount,
}
