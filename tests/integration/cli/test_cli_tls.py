"""`suture tls`: an authority and certificates as an operator makes and looks at them."""

import os
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from agent.cli.main import run
from suture.errors import RefusedError
from suture.runtime.exit_codes import ExitCode
from suture.wire.security import pki
from suture.wire.security.caller import Role, identity_of
from suture.wire.security.tls import Certificates, TlsFiles
from tests.support.printed_json import document_in

NOBODY = 65_534


def suture(capsys: pytest.CaptureFixture[str], *words: str, code: int = ExitCode.OK) -> str:
    """Run `suture tls`; return what it said on stdout."""
    capsys.readouterr()
    actual = run(["tls", *words])
    said = capsys.readouterr()
    assert code == actual, said.out + said.err
    return said.out


@pytest.fixture
def directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """An authority, made by the command."""
    path = tmp_path / "tls"
    suture(capsys, "init", str(path))
    return path


def test_keys_are_for_their_owner_only_whatever_the_umask(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Keys have mode 0600, the directory 0700, certificates may be read by all.
    """
    suture(capsys, "issue", str(directory), "--role", "scm", "--host", "scm.example.org")

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert {
        "ca.key": 0o600,
        "ca.pem": 0o644,
        "scm.example.org.key": 0o600,
        "scm.example.org.pem": 0o644,
    } == modes
    assert 0o700 == stat.S_IMODE(directory.stat().st_mode)


def test_a_peer_keeps_its_datanode_and_gets_a_new_key_when_it_is_issued_again(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A renewal is the same datanode; the key is another, and fits the new certificate.
    """
    words = ("issue", str(directory), "--role", "peer", "--host", "dn1.example.org", "--json")
    first = document_in(suture(capsys, *words), "tls issue")
    key = Path(first["key"]).read_bytes()

    second = document_in(suture(capsys, *words), "tls issue")

    assert first["datanode_id"]
    assert first["datanode_id"] == second["datanode_id"]
    assert first["serial"] != second["serial"]
    assert key != Path(second["key"]).read_bytes()
    files = TlsFiles(Path(second["certificate"]), Path(second["key"]), directory / "ca.pem")
    assert {Role.PEER} == identity_of(Certificates(files).material.certificate).roles


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--role", "peer"), "without the names of its hosts"),
        (("--role", "peer", "--host", "dn 1", "--name", "dn1"), "invalid host name"),
        (("--role", "admin", "--name", "../ada"), "invalid certificate name '../ada'"),
        (("--role", "admin", "--name", "ca"), "invalid certificate name"),
        (("--role", "admin", "--node", "x"), "requires the role peer"),
        (("--role", "admin", "--days", "3650"), "the authority expires"),
    ],
)
def test_refused_certificate_request_leaves_no_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], named: str
) -> None:
    """The error names the invalid argument, and no file is created."""
    directory = tmp_path / "tls"
    suture(capsys, "init", str(directory), "--days", "1000")
    before = sorted(tmp_path.rglob("*"))

    said = suture(capsys, "issue", str(directory), *words, "--json", code=ExitCode.FAILED)

    assert named in document_in(said)["error"]["message"]
    assert before == sorted(tmp_path.rglob("*"))


def test_an_authority_is_never_overwritten(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    A second init in the same directory changes nothing.
    """
    before = (directory / "ca.key").read_bytes()

    said = suture(capsys, "init", str(directory), "--json", code=ExitCode.FAILED)

    assert "exists" in document_in(said)["error"]["message"]
    assert before == (directory / "ca.key").read_bytes()


def test_show_says_whose_and_until_when(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Every certificate of a directory is shown; one that expires soon, or has, makes the exit code 2.
    """
    suture(capsys, "issue", str(directory), "--role", "admin", "--role", "client", "--name", "ada")
    good = suture(capsys, "show", str(directory))
    order = pki.CertificateRequest(name="old", roles=[Role.CLIENT], days=1)
    pki.issue(directory, order, now=pki.now() - timedelta(days=3))

    late = suture(capsys, "show", str(directory), code=ExitCode.TO_DO)

    assert "admin client" in good
    assert "authority" in good
    assert "expired 2 d ago" in late


def test_a_directory_without_a_certificate_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    An empty table would look as if nothing expired.
    """
    code = run(["tls", "show", str(tmp_path)])

    assert ExitCode.FAILED == code
    assert f"cannot find a certificate in {tmp_path}" in capsys.readouterr().err


def test_a_key_is_no_certificate(directory: Path) -> None:
    """The error says that the file is a key, and shows no part of it."""
    with pytest.raises(RefusedError, match="is a private key, not a certificate") as caught:
        pki.describe_certificates(directory / "ca.key")

    secret = (directory / "ca.key").read_text().splitlines()[1]
    assert secret not in str(caught.value) + caught.value.hint


def test_settings_come_from_options_the_environment_or_a_file(
    directory: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A key file that is missing is named, whichever way it was set; half of the settings are refused,
    and so is plaintext to another host.
    """
    suture(capsys, "issue", str(directory), "--role", "admin", "--name", "ada")
    ada, ca, missing = directory / "ada.pem", directory / "ca.pem", tmp_path / "missing.key"
    options = [f"--tls-certificate={ada}", f"--tls-key={missing}", f"--tls-ca={ca}"]
    file = tmp_path / "client.toml"
    file.write_text(f'[tls]\ncertificate = "{ada}"\nkey = "{missing}"\nca = "{ca}"\n')
    ask = ["scm", "nodes", "--scm", "scm.example.org:1", "--json"]

    def complaint(*words: str) -> str:
        capsys.readouterr()
        assert ExitCode.FAILED == run([*words, *ask])
        return str(document_in(capsys.readouterr().out)["error"]["message"])

    assert f"cannot read {missing}" in complaint(*options)
    assert f"cannot read {missing}" in complaint("--client-config", str(file))
    assert "must be set, too" in complaint(options[0])
    assert "without TLS" in complaint()
    for name, path in (("CERTIFICATE", ada), ("KEY", missing), ("CA", ca)):
        monkeypatch.setenv(f"SUTURE_TLS_{name}", str(path))
    assert f"cannot read {missing}" in complaint()
    file.write_text("[tls]\ncertificat = 1\n")
    monkeypatch.delenv("SUTURE_TLS_CERTIFICATE")
    monkeypatch.delenv("SUTURE_TLS_KEY")
    monkeypatch.delenv("SUTURE_TLS_CA")
    assert "tls.certificat" in complaint("--client-config", str(file))
    for wrong in ("tls = 1", 'tls = "x"', "[[tls]]"):
        file.write_text(f"{wrong}\n")
        assert "unknown tls" in complaint("--client-config", str(file))
    file.write_text('[tls]\ncertificate = "~nobody-here/x"\nkey = "k"\nca = "c"\n')
    assert "~nobody-here/x" in complaint("--client-config", str(file))


def test_a_file_that_a_user_may_not_see_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A package may keep /etc/suture from all but its own users: the others have no certificate then.
    """
    closed = tmp_path / "closed"
    (closed / "suture").mkdir(parents=True)
    (closed / "suture" / "client.toml").write_text("[tls]\n")
    closed.chmod(0)
    ask = ["scm", "nodes", "--scm", "127.0.0.1:1"]
    user = os.geteuid()
    assert ExitCode.UNAVAILABLE == run(ask)  # and all that it imports is there

    monkeypatch.setenv("XDG_CONFIG_HOME", str(closed))
    try:
        if not user:
            os.seteuid(NOBODY)
        code = run(ask)
    finally:
        os.seteuid(user)

    assert ExitCode.UNAVAILABLE == code, capsys.readouterr().err


def test_without_a_home_there_is_no_file_in_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A container runs as a number that no passwd entry has.
    """
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999_999)

    code = run(["scm", "nodes", "--scm", "127.0.0.1:1"])

    assert ExitCode.UNAVAILABLE == code, capsys.readouterr().err
