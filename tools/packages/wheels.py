"""The wheels of the packages: locked versions for every supported Python, without a network.

`agent.lock` and `spark.lock` pin each version with the SHA-256 of its files. `make lock` writes
them from pyproject.toml.
"""

import hashlib
import lzma
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).resolve().parents[2]
LOCKS: Final = Path(__file__).parent
PYTHONS: Final = ("3.14", "3.13", "3.12", "3.11")  # the newest first
EXTRAS: Final = "ozone"
GLIBC_MINORS: Final = range(5, 29)  # manylinux_2_5 to manylinux_2_28, that of RHEL 8
SDISTS: Final = frozenset({"pyspark"})  # published as source; the wheel of one fits every Python
ZIP_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
ARCHIVE: Final = "wheels.tar.xz"
WINDOW_BYTES: Final = 64 << 20  # holds two versions of the largest library


@dataclass(frozen=True, slots=True)
class Pin:
    """A locked version of a package, where it applies, and the SHA-256 of each of its files."""

    requirement: Requirement
    hashes: tuple[str, ...]

    def applies_to(self, python: str) -> bool:
        """Return True if a Linux host with this CPython installs the package."""
        marker = self.requirement.marker
        versions = {"python_version": python, "python_full_version": f"{python}.0"}
        return marker is None or marker.evaluate(versions)

    @property
    def line(self) -> str:
        """The pin as a line of a requirements file, without the marker."""
        requirement = f"{self.requirement.name}{self.requirement.specifier}"
        return " ".join([requirement, *(f"--hash=sha256:{each}" for each in self.hashes)])


def pins_of(lock: str) -> list[Pin]:
    """Return the pins of a lock file, `agent` or `spark`."""
    text = (LOCKS / f"{lock}.lock").read_text()
    lines = re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", "").splitlines()
    return [
        Pin(Requirement(line.partition("--hash")[0]), tuple(re.findall(r"sha256:(\w{64})", line)))
        for line in lines
    ]


def gather(folder: Path) -> None:
    """Put the wheels of `suture` into an empty folder."""
    folder.mkdir(parents=True)
    build(folder)
    fetch(folder, pins_of("agent"))


def pack(wheels: Path, folder: Path) -> None:
    """Write the archive of the wheels of `suture` into an empty folder, with the files that
    describe it: requirements, Python versions and build."""
    folder.mkdir(parents=True)
    compress(wheels, folder / ARCHIVE)
    (wheel,) = wheels.glob("suture-*.whl")
    version = wheel.name.split("-")[1]
    (folder / "requirements").write_text(f"suture[{EXTRAS}] == {version}\npip\n")
    (folder / "pythons").write_text("".join(f"{python}\n" for python in PYTHONS))
    (folder / "build").write_text(f"{version}-{checksum(wheels)}\n")


def compress(wheels: Path, target: Path) -> None:
    """Pack the wheels in a folder into an archive, in a fixed order and without times.

    The window is larger than that of xz's preset 1, so that it reaches from a library to the same
    library for another Python. Higher presets take six times as long for the same size.
    """
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": WINDOW_BYTES}]
    with (
        lzma.open(target, "wb", filters=filters) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        for wheel in sorted(wheels.glob("*.whl")):
            member = tarfile.TarInfo(wheel.name)
            member.size, member.mode = wheel.stat().st_size, 0o644
            with wheel.open("rb") as content:
                archive.addfile(member, content)


def gather_spark(folder: Path) -> None:
    """Put the additional wheels of `suture-verify` into an empty folder."""
    folder.mkdir(parents=True)
    present = {pin.line for pin in pins_of("agent")}
    fetch(folder, [pin for pin in pins_of("spark") if pin.line not in present])


def build(folder: Path) -> Path:
    """Build Suture's own wheel; return its path."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*command, "--directory", folder], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("suture-*.whl")
    return wheel


def fetch(folder: Path, pins: Iterable[Pin]) -> None:
    """Fetch the pinned wheels for all Pythons, check their hashes, and store them uncompressed in
    `folder`."""
    pins = list(pins)
    sources = [pin for pin in pins if pin.requirement.name in SDISTS]
    with tempfile.TemporaryDirectory(prefix="suture-wheels-") as scratch:
        fetched = Path(scratch) / "wheels"
        for python in PYTHONS:
            platforms = [f"--platform={name}" for name in platforms_here()]
            wanted = [pin for pin in pins if pin not in sources and pin.applies_to(python)]
            options = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp"]
            run_pip(wanted, "download", *options, *platforms, f"--dest={fetched}")
        if sources:
            tools = f"--build-constraint={LOCKS / 'build.txt'}"  # a wheel names what built it
            run_pip(sources, "wheel", f"--wheel-dir={fetched}", tools)
        for wheel in sorted(fetched.glob("*.whl")):
            store_uncompressed(wheel, folder / wheel.name)


def run_pip(pins: Iterable[Pin], command: str, *options: str) -> None:
    """Run a command of pip on pinned requirements. It fails if a file has another hash."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(f"{pin.line}\n" for pin in pins))
        file.flush()
        subprocess.run(
            [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check",
             "--no-deps", "--require-hashes", f"--requirement={file.name}", *options],
            check=True,
        )  # fmt: skip


def store_uncompressed(wheel: Path, target: Path) -> None:
    """Copy a wheel without compression, in a fixed order and with fixed times.

    The wheels of a package are then compressed together. Most of a native library is equal in the
    wheels of all Pythons, so the result has less than half of the compressed wheels' size.
    """
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w") as stored:
        for member in sorted(source.infolist(), key=lambda member: member.filename):
            if not member.is_dir():
                copy = zipfile.ZipInfo(member.filename, ZIP_EPOCH)
                copy.external_attr = member.external_attr
                with source.open(member) as reader, stored.open(copy, "w") as writer:
                    shutil.copyfileobj(reader, writer)


def platforms_here() -> list[str]:
    """Return the platform tags of wheels for this machine, newest first."""
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


def metadata_of(wheel: Path) -> Message:
    """Return a wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())
