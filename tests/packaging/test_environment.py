"""The environment of a package is made on the host, of the host's Python, without a network."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pip
import pytest

from tools.packages import wheels

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(sys.executable).resolve()
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
WHERE = "import suture.errors, os, sys; print(os.path.realpath(sys.prefix))"
DEAD_INDEX = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_TARGET": "/nowhere"}

needs_linux = pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")


def wheel(folder: Path, name: str, *needed: str, tag: str = "py3-none-any", text: str = "") -> Path:
    """Write a small wheel; it has the module that a host looks for."""
    information = f"{name}-1.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in needed)
    path = folder / f"{name}-1-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        module = "suture/errors.py" if name == "suture" else f"{name}.py"
        archive.writestr(module, text)
        archive.writestr(f"{information}/METADATA", metadata)
        archive.writestr(f"{information}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr(f"{information}/RECORD", "")
    return path


def pack(archive: tarfile.TarFile, staged: Path) -> None:
    """Add the staged wheels and pip, which is a folder there, because modules in a wheel are
    slow."""
    for each in staged.iterdir():
        archive.add(each, each.name)
    archive.add(Path(pip.__file__).parent, "pip-0.whl/pip")


class Package:
    """What a package brought to a host, and the host's folder of Pythons."""

    def __init__(self, home: Path, first: Path) -> None:
        self.home = home / "suture"
        self.wheels = self.home / "wheels"
        self.wheels.mkdir(parents=True)
        self.staged = home / "staged"
        self.staged.mkdir()
        self.pythons = home / "bin"
        self.pythons.mkdir()
        shutil.copy(ROOT / "tools/packages/make-environment", self.home)
        (self.wheels / "pythons").write_text(f"4.1\n{VERSION}\n")
        (self.wheels / "requirements").write_text("suture\n")
        wheel(self.staged, "suture")
        shutil.copy(first, self.wheels / wheels.ARCHIVE)
        (self.wheels / "build").write_text("1-a\n")
        self.install("python3", f"python{VERSION}")

    def release(self, build: str, text: str = "") -> None:
        """Bring other wheels."""
        wheel(self.staged, "suture", text=text)
        self.pack(build)

    def pack(self, build: str) -> None:
        """Replace the archive by one of the staged wheels, which is not compressed."""
        with tarfile.open(self.wheels / wheels.ARCHIVE, "w") as archive:
            pack(archive, self.staged)
        (self.wheels / "build").write_text(f"{build}\n")

    def install(self, *names: str) -> None:
        """Give the host a Python under some names."""
        for name in names:
            (self.pythons / name).symlink_to(PYTHON)

    def make(self, word: str = "") -> subprocess.CompletedProcess[str]:
        """Run the script, with an index that nobody should ask."""
        return subprocess.run(
            [self.home / "make-environment", word or self.pythons],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **DEAD_INDEX},
        )

    def made(self) -> Path:
        """Make an environment, which must succeed, and return where it is."""
        done = self.make()
        assert (0, "") == (done.returncode, done.stderr)
        return (self.home / "venv").resolve()

    def says(self, code: str) -> str:
        """Return what the environment's Python prints."""
        python = self.home / "venv/bin/python"
        return subprocess.run(
            [python, "-I", "-c", code], check=True, capture_output=True, text=True, timeout=60
        ).stdout.strip()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of the first release, compressed as that of a package."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "staged").mkdir()
    wheel(folder / "staged", "suture")
    with tarfile.open(folder / wheels.ARCHIVE, "w:xz", preset=0) as archive:
        pack(archive, folder / "staged")
    return folder / wheels.ARCHIVE


@pytest.fixture
def package(tmp_path: Path, first: Path) -> Package:
    """A package on a host with the Python that runs this."""
    return Package(tmp_path, first)


@needs_linux
class TestMaking:
    """`make-environment`."""

    def test_environment_is_made_once(self, package: Package) -> None:
        """The environment has the wheels and needs no network. A second run changes nothing. The
        name is not random, because it is in the image."""
        first = package.made()

        assert "1-a-1" == first.name
        assert first == package.made()
        assert str(first) == package.says(WHERE)

    def test_environment_is_made_again_without_its_python(self, package: Package) -> None:
        """An upgrade of the host removes a Python. The new environment uses the remaining one."""
        first = package.made()
        (package.pythons / f"python{VERSION}").unlink()

        second = package.made()

        assert not first.exists()
        assert str(second) == package.says(WHERE)

    def test_a_damaged_one_is_made_again(self, package: Package) -> None:
        """The right wheels and the right Python are not enough: the programs must start."""
        first = package.made()
        shutil.rmtree(first / f"lib/python{VERSION}/site-packages/suture")

        second = package.made()

        assert first != second
        assert str(second) == package.says(WHERE)

    def test_environment_is_made_without_a_network(self, package: Package) -> None:
        """A wheel that is not beside the script is not looked for elsewhere, even with a
        network.
        """
        (package.wheels / "requirements").write_text("suture\nwheel\n")

        failed = package.make()

        assert 0 != failed.returncode
        assert "No matching distribution found for wheel" in failed.stderr

    def test_another_release_takes_its_place(self, package: Package) -> None:
        """
        Other wheels make another environment.
        """
        package.made()
        package.release("1-b", text="NEW = 1")

        second = package.made()

        assert [second] == list((package.home / "environments").iterdir())
        assert "1" == package.says("import suture.errors; print(suture.errors.NEW)")

    def test_failed_environment_keeps_the_old_one(self, package: Package) -> None:
        """A damaged wheel ends the script with an error and the programs keep working. The next
        good run replaces the environment.
        """
        first = package.made()
        (package.staged / "suture-1-py3-none-any.whl").write_bytes(b"no wheel")
        package.pack("1-b")

        failed = package.make()

        assert 0 != failed.returncode
        assert first == (package.home / "venv").resolve()
        assert [] == list((package.home / "environments").glob("wheels-*"))
        package.release("1-c")
        assert [package.made()] == list((package.home / "environments").iterdir())

    def test_a_host_without_a_python_is_told_which(self, package: Package) -> None:
        """
        The sentence names those that will do, and what to run then.
        """
        for name in package.pythons.iterdir():
            name.unlink()

        failed = package.make()

        assert 1 == failed.returncode
        assert f"install one of python4.1 python{VERSION} and run {package.home}" in failed.stderr

    def test_a_running_program_keeps_its_own(self, package: Package) -> None:
        """The files that a process has mapped stay until a later run, because it may still
        import from them.
        """
        first = package.made()
        code = f"import mmap, time; f = open({str(first / 'made-of')!r}); "
        code += "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); print(1, flush=True); input()"
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            running.stdout.readline()
            package.release("1-b")
            package.made()
            was_kept = first.exists()
            running.communicate("\n", timeout=30)

        package.release("1-c")
        package.made()

        assert (True, False) == (was_kept, first.exists())

    def test_wheels_added_by_an_administrator_are_installed_each_time(
        self, package: Package
    ) -> None:
        """Wheels in `more` are installed again after a change. One that does not fit is
        reported, and the environment is made without it.
        """
        package.made()
        wheel(package.home / "more", "added")
        package.made()
        package.release("1-b")
        package.made()

        assert "added" == package.says("import added; print(added.__name__)")

        wheel(package.home / "more", "unfit", tag="cp27-cp27m-any")
        told = package.make()

        assert 0 == told.returncode
        assert "does not fit" in told.stderr
        assert "" == package.says("import suture.errors")

    def test_removing_leaves_what_is_not_its_own(self, package: Package) -> None:
        """
        The environments go; the package's files and the administrator's wheels stay.
        """
        package.made()
        wheel(package.home / "more", "added")

        package.make("remove")

        left = {path.name for path in package.home.iterdir()}
        assert {"make-environment", "more", "wheels"} == left


class TestGathering:
    """The wheels are complete for every Python, whichever one builds the package."""

    def test_the_oldest_python_is_the_projects(self) -> None:
        """
        Packages are for every Python that the project supports, from the oldest on.
        """
        minors = [int(version.removeprefix("3.")) for version in wheels.PYTHONS]

        assert minors == list(range(minors[0], minors[-1] - 1, -1))
        project = (ROOT / "pyproject.toml").read_text()
        assert f'requires-python = ">={wheels.PYTHONS[-1]}"' in project
