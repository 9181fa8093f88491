"""What the package gives an operator besides the programs: man pages, completion, its own files."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer._completion_shared import get_completion_script

from tests.support.manual.reading import pages
from tools import make_deb, try_deb
from tools.man import escaped, page
from tools.packages import stage
from tools.packages.wheels import PYTHONS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
def test_a_man_page_has_every_command_and_no_fault(tmp_path: Path) -> None:
    """The formatter prints no warning, and the page has the text of the help."""
    path = tmp_path / "suture-agent.1"
    path.write_text(page("suture-agent", Path(sys.executable)))

    shown = subprocess.run(
        ["man", "--warnings", "--local-file", path],  # noqa: S607 - the system's
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert "" == shown.stderr
    assert "--config" in shown.stdout


def test_a_line_is_shown_as_it_is() -> None:
    """
    Dashes, backslashes and dots at the beginning mean something to troff; here they are text.
    """
    assert [r"\&.so \-\-json", r"a\eb"] == [escaped(".so --json"), escaped("a\\b")]


def test_the_packaged_completion_asks_the_program() -> None:
    """
    The script for bash calls `suture`, which knows its own commands.
    """
    script = get_completion_script(  # noqa: S604 - the name of a shell, no command
        prog_name="suture", complete_var="_SUTURE_COMPLETE", shell="bash"
    )

    assert "_SUTURE_COMPLETE=complete_bash" in script


def test_the_package_has_units_options_and_documents(tmp_path: Path) -> None:
    """
    Every unit is where systemd looks, what the administrator may add to one is not, and the options
    are not for everybody to read.
    """
    stage.place_files(tmp_path, stage.DEBIAN)

    units = {path.name for path in (tmp_path / "lib/systemd/system").iterdir()}
    ours = {path.name for path in (ROOT / "systemd").glob("suture-*")}
    of_the_job = {"suture-verify.service", "suture-verify.timer"}
    assert ours - units == {"suture-scm-verify.conf", *of_the_job}
    assert units < ours
    assert 0o640 == (tmp_path / "etc/suture/agent.toml").stat().st_mode & 0o777
    for name in stage.DOCUMENTS:
        assert (tmp_path / "usr/share/doc/suture" / name.removeprefix("docs/")).exists()


def test_links_of_the_packaged_manual_resolve(tmp_path: Path) -> None:
    """The package has every document that a page of the manual links to."""
    stage.place_files(tmp_path, stage.DEBIAN)

    packaged = sorted((tmp_path / "usr/share/doc/suture/operations").iterdir())
    missing = [
        (page.name, target)
        for page in packaged
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert [page.name for page in packaged] == sorted(page.name for page in pages())
    assert [] == missing


def test_the_package_of_the_job_has_its_unit_timer_and_program(tmp_path: Path) -> None:
    """The package depends on the other one of the same version and on a Java that Spark
    supports.
    """
    stage.place_verify_files(tmp_path, stage.DEBIAN)

    files = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if not p.is_dir()}
    assert files == {
        "lib/systemd/system/suture-verify.service",
        "lib/systemd/system/suture-verify.timer",
        "usr/bin/suture-verify",
        "usr/share/doc/suture-verify/LICENSE",
        "usr/share/doc/suture-verify/SPARK.md",
        "usr/share/suture/suture-scm-verify.conf",
    }
    for script in ("prerm", "postrm"):  # an upgrade stops no timer
        assert 'if [ "$1" = remove ]' in make_deb.MEMBERS[stage.VERIFY][script]
    control = make_deb.control(make_deb.VERIFY_CONTROL, "amd64", 1)
    version = stage.PROJECT["version"]
    java = "default-jre-headless (>= 2:1.17) | java17-runtime-headless"
    assert f"Depends: suture (= {version}), {java}\n" in control


SCRIPTS = [
    text
    for members in make_deb.MEMBERS.values()
    for name, text in members.items()
    if name in ("postinst", "prerm", "postrm")
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_maintainer_script_is_a_shell_script(script: str) -> None:
    """
    The shell finds no fault in it, and it removes nothing but the environment that it made.
    """
    checked = subprocess.run(
        ["/bin/sh", "-n"], input=script, capture_output=True, text=True, timeout=10
    )

    assert (0, "") == (checked.returncode, checked.stderr)
    assert "rm " not in script


def test_any_python_that_there_are_wheels_for_will_do() -> None:
    """
    The package is installed where one of them is, and notices each that comes or goes.
    """
    control = make_deb.control(make_deb.CONTROL, "amd64", 1)

    pythons = " | ".join(f"python{p}" for p in reversed(PYTHONS))
    systemd = "systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles"
    assert f"\nDepends: {pythons}, {systemd}, util-linux\n" in control
    for name in ("python3", *(f"python{version}" for version in PYTHONS)):
        assert f"interest-noawait /usr/bin/{name}\n" in make_deb.TRIGGERS


def test_the_manual_can_be_followed_by_a_program() -> None:
    """The manual has every file and step that `tools/try_deb.py` types on three hosts."""
    steps = try_deb.STEP.findall(try_deb.PAGE.read_text())

    files = [path for path, *_ in steps if path]
    typed = [command for *_, block in steps for command in block.splitlines()]
    assert ["scm.env", "scm.toml", "host.toml", "client.toml"] == [Path(f).name for f in files]
    version = stage.PROJECT["version"]
    assert f"# apt-get install ./suture_{version}_amd64.deb" == typed[0]
    assert "# suture tls init authority" in typed
    assert "# systemctl enable --now suture-scm" in typed
    assert "$ suture put README.md --scm scm.example.org:9860" in typed
