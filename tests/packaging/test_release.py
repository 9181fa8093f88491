"""Releases: pinned versions, bounds, the copyright file, the bill of materials, equal builds."""

import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from tests.support.packaging.checkouts import built, copied
from tools import make_deb, release
from tools.packages import contents, stage, wheels

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: Final = {"agent": ("ozone",), "spark": ("ozone", "scm", "spark")}


def needed(lock: str) -> list[Requirement]:
    """Return the direct requirements of a package."""
    extras = [PROJECT["optional-dependencies"][extra] for extra in EXTRAS[lock]]
    return [Requirement(text) for texts in (PROJECT["dependencies"], *extras) for text in texts]


def bundled(folder: Path, name: str, *, licence: str = "MIT", terms: str = "Terms.") -> Path:
    """Write a wheel with one module; return its path."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    digest = "sha256=" + "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"  # of no bytes
    metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}/__init__.py", "")
        archive.writestr(
            f"{about}/METADATA", metadata + (f"License-Expression: {licence}\n" if licence else "")
        )
        if terms:
            archive.writestr(f"{about}/licenses/LICENSE", terms)
        archive.writestr(f"{about}/RECORD", f"{name}/__init__.py,{digest},0\n{about}/RECORD,,\n")
    return path


class TestLocks:
    """The locks have what each package needs, for every Python."""

    @pytest.mark.parametrize("lock", EXTRAS)
    @pytest.mark.parametrize("python", wheels.PYTHONS)
    def test_lock_has_an_allowed_version_of_each_dependency(self, lock: str, python: str) -> None:
        """After a changed bound, `make lock` is due. Each pin has hashes."""
        pins = [pin for pin in wheels.pins_of(lock) if pin.applies_to(python)]
        versions = {pin.requirement.name: str(pin.requirement.specifier)[2:] for pin in pins}

        assert len(pins) == len(versions)
        assert [] == [
            str(each)
            for each in needed(lock)
            if versions.get(each.name.lower(), "") not in each.specifier
        ]
        assert all(pin.hashes for pin in pins)

    def test_spark_lock_changes_no_version_of_the_agent_lock(self) -> None:
        """Both packages share one environment."""
        lines = {pin.line for pin in wheels.pins_of("spark")}

        assert {p.line for p in wheels.pins_of("agent") if p.requirement.name != "pip"} <= lines

    def test_pin_of_another_python_does_not_apply(self) -> None:
        """The marker is evaluated for the Python of the host, not of the builder."""
        pin = wheels.Pin(Requirement("x==1; python_version < '3.12'"), ("0" * 64,))

        assert [False, True] == [pin.applies_to("3.12"), pin.applies_to("3.11")]
        assert pin.line == f"x==1 --hash=sha256:{'0' * 64}"


def test_every_dependency_has_an_upper_bound_and_a_row() -> None:
    """docs/DEPENDENCIES.md has the direct dependencies, and no other."""
    groups = (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    requirements = [Requirement(text) for texts in groups for text in texts]
    text = (ROOT / "docs/DEPENDENCIES.md").read_text()
    rows = re.findall(r"^\| ([a-z][^|]*) \|", text, re.MULTILINE)
    named = {name for row in rows for name in row.split(", ")} - {"library"}

    unbounded = [str(r) for r in requirements if not any("<" in s.operator for s in r.specifier)]
    assert [] == unbounded
    assert {requirement.name for requirement in requirements} == named


class TestStoredWheels:
    """Wheels are stored uncompressed, and equal for equal content."""

    def test_stored_wheel_has_the_same_files(self, tmp_path: Path) -> None:
        """Content and names stay; order, times and compression are fixed."""
        wheel = bundled(tmp_path, "some")
        stored = tmp_path / "stored.whl"

        wheels.store_uncompressed(wheel, stored)

        with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(stored) as after:
            assert {n: before.read(n) for n in before.namelist()} == {
                n: after.read(n) for n in after.namelist()
            }
            members = after.infolist()
        assert sorted(member.filename for member in members) == [m.filename for m in members]
        assert {(wheels.ZIP_EPOCH, zipfile.ZIP_STORED)} == {
            (member.date_time, member.compress_type) for member in members
        }


class TestArchive:
    """The wheels of a package are compressed together, once for both kinds of packages."""

    def test_archives_of_equal_wheels_are_equal(self, tmp_path: Path) -> None:
        """Times, permissions and the order of the directory do not matter."""
        for place, names in (("a", ("one", "two")), ("b", ("two", "one"))):
            (tmp_path / place).mkdir()
            for name in names:
                stage.place(tmp_path / place / f"{name}.whl", name.encode())
        os.utime(tmp_path / "b/one.whl", (1, 1))
        (tmp_path / "b/one.whl").chmod(0o600)

        first, second = (tmp_path / f"{place}.tar.xz" for place in ("a", "b"))
        for archive in (first, second):
            wheels.compress(tmp_path / archive.name[0], archive)

        assert first.read_bytes() == second.read_bytes()
        with tarfile.open(first, "r:xz") as packed:
            assert ["one.whl", "two.whl"] == packed.getnames()

    def test_equal_libraries_of_two_pythons_are_stored_once(self, tmp_path: Path) -> None:
        """The window of the compression is larger than that of xz's lower presets."""
        library = random.Random(1).randbytes(4 << 20)
        for name in ("a", "b"):
            stage.place(tmp_path / f"{name}.whl", library)

        wheels.compress(tmp_path, tmp_path / wheels.ARCHIVE)

        assert (tmp_path / wheels.ARCHIVE).stat().st_size < len(library) * 1.1

    def test_packed_folder_names_what_a_host_installs(self, tmp_path: Path) -> None:
        """The folder has the archive, the name to install, the Pythons, and the build."""
        (tmp_path / "own").mkdir()
        bundled(tmp_path / "own", "suture")

        wheels.pack(tmp_path / "own", tmp_path / "packed")

        texts = {p.name: p.read_text() for p in (tmp_path / "packed").iterdir() if not p.suffix}
        assert texts.pop("build").startswith("1.0-")
        assert texts == {
            "requirements": "suture[ozone] == 1.0\npip\n",
            "pythons": "3.14\n3.13\n3.12\n3.11\n",
        }
        assert [tmp_path / "packed" / wheels.ARCHIVE] == list((tmp_path / "packed").glob("*.*"))


class TestContents:
    """The copyright file and the bill of materials."""

    def test_copyright_file_has_licence_and_text_of_each_project(self, tmp_path: Path) -> None:
        """A project with several wheels appears once."""
        each = [bundled(tmp_path, "one", terms="First."), bundled(tmp_path, "two", terms="Second.")]

        text = contents.copyright_text([*each, each[0]])

        assert 1 == text.count("one 1.0\nLicence: MIT\n")
        assert 1 == text.count("two 1.0\nLicence: MIT\n")
        assert [True, True] == [words in text for words in ("First.", "Second.")]

    @pytest.mark.parametrize("lacking", [{"terms": ""}, {"licence": ""}])
    def test_wheel_without_licence_is_refused(
        self, tmp_path: Path, lacking: dict[str, str]
    ) -> None:
        """Neither the name nor the text of a licence may be missing."""
        wheel = bundled(tmp_path, "bare", **lacking)

        with pytest.raises(contents.UnlicensedError, match=re.escape("bare-1.0")):
            contents.copyright_text([wheel])

    def test_bill_of_materials_has_every_file(self, tmp_path: Path) -> None:
        """Each file below /opt/suture has its hash, the archive its wheels, and each wheel its
        project and files."""
        own, home = tmp_path / "own", tmp_path / "root/opt/suture"
        for folder in (own, home / "wheels", home / "more"):
            folder.mkdir(parents=True)
        packed = bundled(own, "packed")
        wheels.compress(own, home / "wheels" / wheels.ARCHIVE)
        bundled(home / "more", "some")

        bill = json.loads(contents.bill_of_materials([tmp_path / "root"], "0.1.0", 86400))

        assert ("CycloneDX", "1.6") == (bill["bomFormat"], bill["specVersion"])
        assert "1970-01-02T00:00:00+00:00" == bill["metadata"]["timestamp"]
        found = {each["bom-ref"]: each for each in bill["components"]}
        paths = [path for path in home.rglob("*") if path.is_file()]
        files = {f"/opt/suture/{path.relative_to(home)}": path for path in paths}
        assert files.keys() == found.keys()
        for name, path in files.items():
            (digest,) = found[name]["hashes"]
            assert hashlib.sha256(path.read_bytes()).hexdigest() == digest["content"]
        (archived,) = found[f"/opt/suture/wheels/{wheels.ARCHIVE}"]["components"]
        assert f"/opt/suture/wheels/{wheels.ARCHIVE}!{packed.name}" == archived["bom-ref"]
        for name, each in (("some", found["/opt/suture/more/some-1.0-py3-none-any.whl"]),
                           ("packed", archived)):  # fmt: skip
            assert f"pkg:pypi/{name}@1.0" == each["purl"]
            assert [{"expression": "MIT"}] == each["licenses"]
            assert {f"{name}/__init__.py", f"{name}-1.0.dist-info/RECORD"} == {
                member["name"] for member in each["components"]
            }

    def test_bill_of_materials_has_the_packages_of_the_image(self, tmp_path: Path) -> None:
        """Each line of image.lock is a component with version and hash."""
        line = f"libc6=1:2.41-12 --hash=sha256:{'ab' * 32}"

        bill = json.loads(contents.bill_of_materials([tmp_path], "0.1.0", 86400, [line]))

        [found] = bill["components"]
        assert ("libc6", "1:2.41-12") == (found["name"], found["version"])
        assert found["purl"].startswith("pkg:deb/debian/libc6@1")
        assert [{"alg": "SHA-256", "content": "ab" * 32}] == found["hashes"]

    def test_unlisted_files_of_a_host_are_found(self, tmp_path: Path) -> None:
        """Files of the package and of its wheels are known by name and content. Files that the
        installation writes are known by name."""
        own, home = tmp_path / "own", tmp_path / "opt/suture"
        for folder in (own, home / "wheels"):
            folder.mkdir(parents=True)
        bundled(own, "some")
        wheels.compress(own, home / "wheels" / wheels.ARCHIVE)
        bill = contents.bill_of_materials([tmp_path], "0.1.0", 86400)
        site = home / "environments/one/lib/python3.11/site-packages"
        for name in ("bin/some", "pyvenv.cfg", "made-of", ".gitignore"):
            stage.place(home / "environments/one" / name, b"written")
        stage.place(site / "some/__init__.py", b"")
        stage.place(site / "some/__pycache__/__init__.cpython-311.pyc", b"written")
        stage.place(site / "some-1.0.dist-info/INSTALLER", b"pip")
        (home / "venv").symlink_to("environments/one")

        assert [] == contents.unlisted(tmp_path, bill)

        stage.place(site / "some/__init__.py", b"changed")
        stage.place(site / "other.py", b"")
        stage.place(home / "wheels/other.whl", b"")
        assert ["other.py", "__init__.py", "other.whl"] == [
            Path(name).name for name in contents.unlisted(tmp_path, bill)
        ]


class TestRelease:
    """The command that builds a release."""

    def test_version_of_another_release_is_refused(self) -> None:
        """Nothing is built, and the error names the version of the tree."""
        done = subprocess.run(
            [sys.executable, "tools/release.py", "9.9.9"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )

        assert 1 == done.returncode
        expected = f"cannot release 9.9.9: pyproject.toml has version {PROJECT['version']}\n"
        assert expected == done.stderr
        assert not (ROOT / "dist/9.9.9").exists()

    @pytest.mark.parametrize("program", PROJECT["scripts"])
    def test_program_prints_the_version_of_the_project(self, program: str) -> None:
        """Each program of the package has the option."""
        module, _, function = PROJECT["scripts"][program].partition(":")
        code = f"from {module} import {function} as start; start()"

        printed = subprocess.run(
            [sys.executable, "-c", code, "--version"],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout

        assert f"{program} {PROJECT['version']}\n" == printed

    def test_changelog_begins_with_the_version_of_the_project(self) -> None:
        """The newest section of CHANGELOG.md has at most 60 lines."""
        sections = re.split(r"^(?=## \[)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)

        assert sections[1].startswith(f"## [{PROJECT['version']}]")
        assert len(sections[1].splitlines()) <= 60

    def test_notes_are_assembled_before_the_last_release(self, tmp_path: Path) -> None:
        """towncrier puts the notes of changes above the newest section, and deletes them."""
        (tmp_path / "changelog.d").mkdir()
        for name in ("pyproject.toml", "CHANGELOG.md", "changelog.d/README.md"):
            (tmp_path / name).write_bytes((ROOT / name).read_bytes())
        note = tmp_path / "changelog.d/+listing.fixed.md"
        note.write_text("`suture ls` prints every key.\n")
        words = ["build", "--yes", "--version", "9.9.9", "--date", "2030-01-02"]
        for command in (["git", "init", "-q"], [sys.executable, "-m", "towncrier", *words]):
            subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)

        text = (tmp_path / "CHANGELOG.md").read_text()
        section, _, older = text.partition("## [9.9.9] - 2030-01-02\n")[2].partition("\n## [")

        assert "### Fixed\n\n- `suture ls` prints every key." == section.strip()
        assert older.startswith(PROJECT["version"])
        assert not note.exists()

    def test_archives_of_one_folder_are_equal(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Times of files and the order of a directory do not matter."""
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
        for place, names in (("a", ("one", "two")), ("b", ("two", "one"))):
            (tmp_path / place / "site").mkdir(parents=True)
            for name in names:
                (tmp_path / place / "site" / name).write_text(name)
                os.utime(tmp_path / place / "site" / name, (len(place), hash(place) % 999))
            release.archive([tmp_path / place / "site"], tmp_path / place / "s-1-site.tar.xz")

        first, second = (tmp_path / place / "s-1-site.tar.xz" for place in ("a", "b"))
        assert first.read_bytes() == second.read_bytes()
        with tarfile.open(first) as packed:
            assert ["s-1-site/one", "s-1-site/two"] == packed.getnames()

    def test_wheel_and_source_distribution_do_not_depend_on_the_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two checkouts with other paths, times and permissions give the same bytes."""
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        first = copied(tmp_path / "one")
        second = copied(tmp_path / "another/place")
        for path in second.rglob("*"):
            os.utime(path, (1, 1))
            path.chmod(0o700 if path.is_dir() else 0o600)

        of_first, of_second = (
            {path.name: release.sha256(path) for path in built(folder)}
            for folder in (first, second)
        )

        assert of_first == of_second
        assert {".whl", ".gz"} == {Path(name).suffix for name in of_first}

    def test_bill_of_materials_does_not_depend_on_the_directory(self) -> None:
        """Two roots with equal files, written in another order, give the same bytes. tmpfs lists
        files in the order in which they were written."""
        with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
            roots = [Path(scratch, place) for place in ("one", "another/place")]
            for root, names in zip(roots, (("first", "second"), ("second", "first")), strict=True):
                folder = root / "opt/suture/wheels"
                folder.mkdir(parents=True)
                for name in names:
                    bundled(folder, name)

            first, second = (contents.bill_of_materials([root], "0.1.0", 86400) for root in roots)

        assert first == second

    @pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
    def test_debian_packages_of_equal_trees_are_equal(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Directory, mask and number of processors do not matter. The compression is cheap."""
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
        content = "".join(map(str, range(1_000_000))).encode()  # in parts, if there are threads
        packages = []
        for place, mode in (("one", 0o600), ("another", 0o644)):  # of another umask
            monkeypatch.setenv("DPKG_DEB_THREADS_MAX", "2" if packages else "1")
            root = tmp_path / place / "root"
            stage.place(root / stage.OPTIONS, b"")
            stage.place(root / "opt/suture/some", content)
            stage.place(root / "opt/suture/wheels/build", b"1")
            (root / "opt/suture/wheels/build").chmod(mode)
            stage.readable(root)
            out = tmp_path / place / "out"
            out.mkdir()
            packages.append(make_deb.pack(root, "suture", out))

        assert packages[0].read_bytes() == packages[1].read_bytes()
        assert [packages[0]] == list(packages[0].parent.iterdir())
        assert b"data.tar.zst" in packages[0].read_bytes()

    @pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
    @pytest.mark.parametrize("package", make_deb.MEMBERS)
    def test_debian_package_states_its_installed_size(self, tmp_path: Path, package: str) -> None:
        """The size is in KiB, rounded up for each file. A folder needs 1 KiB, and dpkg's own files
        do not count."""
        root = tmp_path / "root"
        for name, size in (("one", 1), ("whole", 2048), ("more", 2049)):
            stage.place(root / "opt/suture" / name, bytes(size))
        (root / "opt/suture/link").symlink_to("one")
        stage.place(root / stage.OPTIONS, b"")

        built_package = make_deb.pack(root, package, tmp_path)

        field = ["dpkg-deb", "--field", built_package, "Installed-Size"]
        shown = subprocess.run(field, check=True, capture_output=True, text=True, timeout=60)
        folders, files, link = 4, 1 + 2 + 3, 1
        assert folders + files + link == int(shown.stdout)

    def test_large_package_of_the_agent_is_found(self, tmp_path: Path) -> None:
        """Only the packages of the agent have a limit."""
        names = ("suture_1_amd64.deb", "suture-1-1.x86_64.rpm", "suture-verify_1_amd64.deb",
                 "suture-verify-1-1.x86_64.rpm", "suture-1.tar.gz")  # fmt: skip
        for name in names:
            (tmp_path / name).touch()
            os.truncate(tmp_path / name, 80_000_000)

        assert [] == release.oversized(tmp_path)

        for name in names:
            os.truncate(tmp_path / name, 80_000_001)
        assert sorted(names[:2]) == release.oversized(tmp_path)

    def test_checksums_match_the_artifacts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`sha256sum --check` accepts them."""
        monkeypatch.delenv("RELEASE_KEY", raising=False)
        (tmp_path / "artifact").write_text("content")

        release.sign(tmp_path)

        subprocess.run(
            ["sha256sum", "--check", "--strict", "SHA256SUMS"],  # noqa: S607 - the system's
            cwd=tmp_path,
            check=True,
            capture_output=True,
            timeout=60,
        )

    @pytest.mark.skipif(shutil.which("gpg") is None, reason="gpg is not installed")
    def test_signature_fails_for_changed_checksums(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """SHA256SUMS.asc is a detached signature of the key that RELEASE_KEY names."""
        with tempfile.TemporaryDirectory(prefix="gpg-") as folder:  # sockets need a short path
            home, out = Path(folder, "home"), Path(folder, "out")
            home.mkdir(mode=0o700)
            out.mkdir()
            monkeypatch.setenv("GNUPGHOME", str(home))
            monkeypatch.setenv("RELEASE_KEY", "release@suture.invalid")
            key = ("--passphrase", "", "--quick-generate-key", "release@suture.invalid", "ed25519")
            gpg(*key)
            (out / "artifact").write_text("content")

            release.sign(out)

            sums = out / "SHA256SUMS"
            assert 0 == gpg("--verify", f"{sums}.asc", str(sums))
            sums.write_text("other\n")
            assert 1 == gpg("--verify", f"{sums}.asc", str(sums))
            subprocess.run(["gpgconf", "--kill", "all"], check=True, timeout=60)  # noqa: S607


def gpg(*words: str) -> int:
    """Run gpg without a terminal; return its exit code."""
    return subprocess.run(
        ["gpg", "--batch", "--pinentry-mode", "loopback", *words],  # noqa: S607 - the system's
        capture_output=True,
        timeout=60,
    ).returncode
