"""The RPM package: what it asks of a host, brings, and does there; rpm itself reads it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tools import make_rpm
from tools.packages import stage
from tools.packages.wheels import PYTHONS

FOLDERS = {
    *("/opt/suture", "/opt/suture/wheels", "/usr/share/suture"),
    *("/usr/share/doc/suture", "/usr/share/doc/suture/operations"),
}

needs_rpm = pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="rpmbuild is not installed")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, without wheels, which are fetched, and man pages, which take long."""
    scratch = tmp_path_factory.mktemp("rpm")
    root = scratch / "root"
    stage.place_files(root, stage.RPM)
    stage.place_programs(root, stage.RPM)
    stage.place(root / stage.HOME / "wheels/build", b"0\n")
    stage.readable(root)
    return make_rpm.packed("rpmbuild", make_rpm.spec(root), scratch, scratch)


@pytest.fixture(scope="module")
def verify_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the Spark job, without wheels and man pages."""
    scratch = tmp_path_factory.mktemp("rpm-verify")
    root = scratch / "root"
    stage.place_verify_files(root, stage.RPM)
    stage.readable(root)
    return make_rpm.packed("rpmbuild", make_rpm.verify_spec(root), scratch, scratch)


def asked(package: Path, *options: str) -> str:
    """Return what rpm prints about a package."""
    return subprocess.run(
        ["rpm", "--query", "--package", *options, package],  # noqa: S607 - the system's
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout


@needs_rpm
def test_rpm_requires_one_of_the_supported_pythons(package: Path) -> None:
    """Any Python with wheels will do, and a host without one is refused."""
    required = asked(package, "--requires").splitlines()

    assert f"({' or '.join(f'python(abi) = {python}' for python in PYTHONS)})" in required
    assert {"systemd", "util-linux"} <= set(required)


@needs_rpm
def test_rpm_has_the_files_of_the_debian_package(package: Path, tmp_path: Path) -> None:
    """Only some folders of the distribution have other names."""
    stage.place_files(tmp_path, stage.DEBIAN)
    stage.place_programs(tmp_path, stage.DEBIAN)
    of_debian = {
        f"/{path.relative_to(tmp_path)}".replace(stage.DEBIAN.units, stage.RPM.units).replace(
            stage.DEBIAN.zsh, stage.RPM.zsh
        )
        for path in tmp_path.rglob("*")
        if path.is_symlink() or path.is_file()
    }

    listed = set(asked(package, "--list").splitlines())

    assert of_debian | {"/opt/suture/wheels/build", *FOLDERS} == listed


@needs_rpm
def test_the_job_asks_for_java_and_the_other_package(verify_package: Path, tmp_path: Path) -> None:
    """The package has the files of Debian's package, and the environment is made again for its
    wheels.
    """
    stage.place_verify_files(tmp_path, stage.RPM)
    staged = {f"/{p.relative_to(tmp_path)}" for p in tmp_path.rglob("*") if not p.is_dir()}

    required = asked(verify_package, "--requires").splitlines()
    listed = set(asked(verify_package, "--list").splitlines())
    scriptlets = asked(verify_package, "--scripts")

    assert {f"suture = {stage.PROJECT['version']}-1", "java-headless >= 1:17"} <= set(required)
    assert staged | {"/usr/share/doc/suture-verify", "/usr/share/suture"} == listed
    assert 2 == len(
        re.findall(r"^(?:.*\|\| )?/opt/suture/make-environment$", scriptlets, re.MULTILINE)
    )
    assert "systemctl stop suture-verify.timer suture-verify.service" in scriptlets


@needs_rpm
def test_options_stay_and_are_not_for_everybody(package: Path) -> None:
    """
    An upgrade keeps what was changed, and the group alone may read it.
    """
    (options,) = (line for line in asked(package, "--dump").splitlines() if "agent.toml" in line)

    assert ["0100640", "root", "root", "1"] == options.split()[4:8]  # 1: a file of options


@needs_rpm
def test_rpm_scripts_do_the_steps_of_the_debian_package(package: Path) -> None:
    """The scripts create user, folders and environment, and the environment again when the
    host's Python changes.
    """
    scriptlets, triggers = asked(package, "--scripts"), asked(package, "--filetriggers")

    for step in ("systemd-sysusers", "systemd-tmpfiles", "make-environment", "daemon-reload"):
        assert step in scriptlets.partition("preuninstall")[0]
    assert "make-environment remove" in scriptlets.partition("preuninstall")[2]
    assert 2 == triggers.count("-- /usr/bin/python3")
    assert 2 == triggers.count("/opt/suture/make-environment\n")


@needs_rpm
def test_packages_of_equal_trees_are_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directory, times and the user's mask do not matter. The compression is a cheap one."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    packages = []
    for place, mode in (("one", 0o600), ("another/place", 0o644)):
        root, out = tmp_path / place / "root", tmp_path / place / "out"
        stage.place_files(root, stage.RPM)
        stage.place_programs(root, stage.RPM)
        stage.place(root / stage.HOME / "wheels/build", b"0\n")
        (root / stage.HOME / "wheels/build").chmod(mode)
        stage.readable(root)
        out.mkdir()
        packages.append(make_rpm.packed("rpmbuild", make_rpm.spec(root), root.parent, out))

    assert packages[0].read_bytes() == packages[1].read_bytes()
    assert "zstd 9" == asked(packages[0], "--queryformat", "%{PAYLOADCOMPRESSOR} %{PAYLOADFLAGS}")
