"""Gathers the wheels for every supported Python, for hosts without a network."""

import hashlib
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT: Final = Path(__file__).resolve().parents[2]
PYTHONS: Final = ("3.14", "3.13", "3.12", "3.11")  # the newest first
EXTRAS: Final = "ozone"
SPARK_EXTRAS: Final = "ozone,scm,spark"
BESIDE: Final = ("pip",)
GLIBC_MINORS: Final = range(5, 29)  # manylinux_2_5 to manylinux_2_28, that of RHEL 8


class Incomplete(Exception):
    """Raised if a wheel that some host needs is missing."""


def gather(folder: Path) -> None:
    """Put all wheels and the list of requirements into an empty folder. Raise Incomplete if one is
    missing."""
    folder.mkdir(parents=True)
    wheel = build(folder)
    for python in PYTHONS:
        download(folder, f"{wheel}[{EXTRAS}]", python)
    version = wheel.name.split("-")[1]
    (folder / "requirements").write_text("\n".join([f"suture[{EXTRAS}] == {version}", *BESIDE, ""]))
    (folder / "pythons").write_text("".join(f"{python}\n" for python in PYTHONS))
    (folder / "build").write_text(f"{version}-{checksum(folder)}\n")
    check_complete(folder, EXTRAS)


def gather_spark(folder: Path, present: Path) -> None:
    """Put the additional wheels of `suture-verify` into an empty folder; `present` has the others.
    Raise Incomplete if one is missing."""
    folder.mkdir(parents=True)
    (wheel,) = present.glob("suture-*.whl")
    needed = needed_by(metadata_of(wheel), {"spark"}, PYTHONS[0])
    (spark,) = (f"{each.name}{each.specifier}" for each in needed if each.name == "pyspark")
    subprocess.run(  # it is published as source, and its wheel fits every Python
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check",
         "--no-deps", f"--wheel-dir={folder}", spark],
        check=True,
    )  # fmt: skip
    for path in present.glob("*.whl"):
        shutil.copy(path, folder)
    for python in PYTHONS:
        download(folder, f"{wheel}[{SPARK_EXTRAS}]", python)
    check_complete(folder, SPARK_EXTRAS)
    for path in present.glob("*.whl"):
        (folder / path.name).unlink()


def check_complete(folder: Path, extras: str) -> None:
    """Raise Incomplete if a wheel is missing for a host with one of the Pythons."""
    lacking = [
        f"Python {python}: {text}"
        for python in PYTHONS
        for text in absent(folder, python, [f"suture[{extras}]", *BESIDE])
    ]
    if lacking:
        raise Incomplete("; ".join(lacking))


def build(folder: Path) -> Path:
    """Build Suture's own wheel; return its path."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*command, "--directory", folder], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("suture-*.whl")
    return wheel


def download(folder: Path, requirement: str, python: str) -> None:
    """Fetch the requirements of a Python, which need not be installed. Nothing is compiled."""
    platforms = [f"--platform={name}" for name in platforms_here()]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
         "--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms,
         f"--find-links={folder}", f"--dest={folder}", requirement, *BESIDE],
        check=True,
    )  # fmt: skip


def platforms_here() -> list[str]:
    """Return the wheel names of this machine's platform, newest first."""
    machine = platform.machine()
    names = [f"manylinux_2_{minor}_{machine}" for minor in reversed(GLIBC_MINORS)]
    return [*names, *(f"manylinux{year}_{machine}" for year in ("2014", "2010", "1"))]


def checksum(folder: Path) -> str:
    """Return eight digits that distinguish these wheels from other wheels of the same version."""
    total = hashlib.sha256()
    for wheel in sorted(folder.glob("*.whl")):
        total.update(f"{wheel.name}\n".encode())
        if wheel.name.startswith("suture-"):  # other wheels never change under the same name
            total.update(wheel.read_bytes())
    return total.hexdigest()[:8]


def absent(folder: Path, python: str, wanted: list[str]) -> Iterator[str]:
    """Yield the requirements that a host with this Python would not find in the folder.

    When pip downloads for another Python, it evaluates markers for the Python that runs pip.
    Requirements that only older Pythons have could therefore be missing.
    """
    tags = tags_of(python)
    here = {
        canonicalize_name(wheel.name.partition("-")[0]): wheel
        for wheel in sorted(folder.glob("*.whl"))
        if parse_wheel_filename(wheel.name)[3] & tags
    }
    asked, waiting = set[str](), [Requirement(text) for text in wanted]
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in asked:
            continue
        asked.add(str(requirement))
        wheel = here.get(canonicalize_name(requirement.name))
        if wheel is None or parse_wheel_filename(wheel.name)[1] not in requirement.specifier:
            yield str(requirement)
            continue
        waiting += needed_by(metadata_of(wheel), requirement.extras, python)


def needed_by(metadata: Message, extras: set[str], python: str) -> Iterator[Requirement]:
    """Yield the requirements of a package on a Python, with some of its extras."""
    versions = {"python_version": python, "python_full_version": f"{python}.0"}
    for text in metadata.get_all("Requires-Dist") or []:
        requirement = Requirement(text)
        environments = [{**versions, "extra": extra} for extra in extras or {""}]
        marker = requirement.marker
        if marker is None or any(marker.evaluate(each) for each in environments):
            yield requirement


def tags_of(python: str) -> frozenset[Tag]:
    """Return the wheel tags that a Python on this platform installs."""
    major, minor = map(int, python.split("."))
    platforms = platforms_here()
    return frozenset(
        {
            *cpython_tags((major, minor), platforms=platforms),
            *compatible_tags((major, minor), f"cp{major}{minor}", platforms),
        }
    )


def metadata_of(wheel: Path) -> Message:
    """Return a wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())
