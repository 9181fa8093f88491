"""The XML files of a cluster, as Hadoop reads them; and the options that they replace."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import typer

from ozone.access_options import identity_of, scm_addresses, site_config
from ozone.clients.authentication import HadoopIdentity
from ozone.clients.connection import Address
from ozone.clients.kerberos import KerberosIdentity
from ozone.clients.sasl import ProtectionLevel
from ozone.clients.site_config import CLIENT_PORT, SiteConfig, read_site_config
from suture.errors import RefusedError

SECURITY_PORT = ("security.service", 9961)
GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "ozone"
SECURE = {
    "ozone.security.enabled": "true",
    "hadoop.security.authentication": "kerberos",
    "hdds.scm.kerberos.principal": "scm/_HOST@EXAMPLE.COM",
}


def write(directory: Path, file: str, rows: str) -> None:
    """Write a file with these properties."""
    directory.mkdir(exist_ok=True)
    (directory / file).write_text(f"<?xml version='1.0'?><configuration>{rows}</configuration>")


def row(name: str, value: str, more: str = "") -> str:
    """Return a property."""
    return f"<property><name>{name}</name><value>{value}</value>{more}</property>"


def identity(config: SiteConfig, **more: Any) -> Any:
    """Return the identity for a configuration and options."""
    options: dict[str, Any] = {"user": "", "principal": "", "keytab": None, "scm_principal": ""}
    return identity_of(config, **(options | more))


def test_file_of_a_real_secure_cluster_names_its_scm_and_its_protection(tmp_path: Path) -> None:
    """The file with which a secure Ozone 2.2.0 ran; ports are in the addresses."""
    shutil.copy(GOLDEN / "secure-ozone-site.xml", tmp_path / "ozone-site.xml")

    config = read_site_config(tmp_path)

    assert config.is_kerberos
    assert (Address("localhost", 26975),) == config.scm_addresses(CLIENT_PORT)
    assert (Address("localhost", 26978),) == config.scm_addresses(SECURITY_PORT)
    assert KerberosIdentity("scm/localhost@EXAMPLE.COM") == identity(config)


def test_ozone_site_overrides_core_site_except_for_final_properties(tmp_path: Path) -> None:
    """The files are read in Hadoop's order, and `final` protects a value."""
    write(tmp_path, "core-site.xml", row("a", "1") + row("b", "1", "<final>true</final>"))
    write(tmp_path, "ozone-site.xml", row("a", "2") + row("b", "2") + row("c", " 3\n"))

    config = read_site_config(tmp_path)

    assert ["2", "1", "3", "4"] == [config.get(name, "4") for name in "abcd"]


def test_variables_in_values_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By properties, and by the environment with a default."""
    monkeypatch.setenv("OZONE_HOST", "host7")
    rows = row("a", "${b}:${env.OZONE_HOST}:${env.NONE:-9}") + row("b", "<![CDATA[x${c}]]>")
    write(tmp_path, "ozone-site.xml", rows + row("c", "y") + row("d", "${none}"))

    config = read_site_config(tmp_path)

    assert "xy:host7:9" == config.get("a")
    with pytest.raises(RefusedError, match=r"cannot resolve \$\{none\}"):
        config.get("d")


def test_variable_that_names_itself_ends() -> None:
    """The value stays as it is after twenty rounds, as in Hadoop."""
    assert SiteConfig({"a": "${a}"}).get("a") == "${a}"


@pytest.mark.parametrize(
    ("properties", "service", "expected"),
    [
        ({"ozone.scm.names": "s1"}, CLIENT_PORT, [("s1", 9860)]),
        ({"ozone.scm.names": "s1:9861"}, SECURITY_PORT, [("s1", 9961)]),
        ({"ozone.scm.client.address": "s1:77"}, CLIENT_PORT, [("s1", 77)]),
        ({"ozone.scm.client.address": "s1:77"}, SECURITY_PORT, [("s1", 9961)]),
        (
            {
                "ozone.scm.service.ids": "x",
                "ozone.scm.nodes.x": "n1, n2",
                "ozone.scm.address.x.n1": "s1",
                "ozone.scm.address.x.n2": "s2",
                "ozone.scm.client.port.x.n2": "88",
            },
            CLIENT_PORT,
            [("s1", 9860), ("s2", 88)],
        ),
        (
            {
                "ozone.scm.service.ids": "x",
                "ozone.scm.nodes.x": "n1",
                "ozone.scm.address.x.n1": "s1",
                "ozone.scm.client.address.x.n1": "0.0.0.0:99",
            },
            CLIENT_PORT,
            [("s1", 99)],
        ),
    ],
)
def test_addresses_of_scms_come_from_either_form_of_configuration(
    properties: dict[str, str], service: tuple[str, int], expected: list[tuple[str, int]]
) -> None:
    """One SCM, or several with a service id (SCMNodeInfo of Ozone)."""
    assert tuple(Address(*one) for one in expected) == SiteConfig(properties).scm_addresses(service)


@pytest.mark.parametrize(
    "properties",
    [{}, {"ozone.scm.service.ids": "x", "ozone.scm.nodes.x": "n1"}, {"ozone.scm.names": ":1"}],
)
def test_configuration_without_an_scm_is_refused(properties: dict[str, str]) -> None:
    """The error says which properties are missing."""
    with pytest.raises(RefusedError, match="do not name the addresses of the SCMs"):
        SiteConfig(properties).scm_addresses(CLIENT_PORT)


@pytest.mark.parametrize("text", ["x", "70000", "-1"])
def test_invalid_port_is_refused(text: str) -> None:
    """Before anything is called."""
    with pytest.raises(RefusedError, match="invalid port"):
        SiteConfig({"ozone.scm.client.address": f"s1:{text}"}).scm_addresses(CLIENT_PORT)


@pytest.mark.parametrize("content", ["", "<configuration>", "no xml"])
def test_invalid_file_is_named(tmp_path: Path, content: str) -> None:
    """A directory without the files, too."""
    with pytest.raises(RefusedError, match=r"has no ozone-site\.xml"):
        read_site_config(tmp_path)
    (tmp_path / "ozone-site.xml").write_text(content)
    with pytest.raises(RefusedError, match=r"cannot read .*ozone-site\.xml"):
        read_site_config(tmp_path)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("", ProtectionLevel.AUTHENTICATION),
        ("privacy", ProtectionLevel.PRIVACY),
        ("Integrity, privacy", ProtectionLevel.INTEGRITY),
    ],
)
def test_lowest_configured_protection_is_required(text: str, level: ProtectionLevel) -> None:
    """A list accepts each of its levels, as in Hadoop."""
    config = SiteConfig(SECURE | {"hadoop.rpc.protection": text})

    assert level is identity(config).level_min


def test_unknown_protection_is_refused() -> None:
    """Nothing weaker is assumed."""
    with pytest.raises(RefusedError, match=r"invalid hadoop\.rpc\.protection 'strong'"):
        identity(SiteConfig(SECURE | {"hadoop.rpc.protection": "strong"}))


def test_insecure_configuration_uses_simple_authentication() -> None:
    """`--user` then names the user."""
    assert HadoopIdentity("om") == identity(SiteConfig({}), user="om")


def test_options_win_over_the_configuration(tmp_path: Path) -> None:
    """The principal of the SCM, and the caller's."""
    found = identity(SiteConfig(SECURE), principal="me@A", keytab=tmp_path, scm_principal="scm/x@A")

    assert KerberosIdentity("scm/x@A", "me@A", tmp_path) == found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keytab": Path("k"), "scm_principal": "s/h"}, "--keytab needs --principal"),
        ({"principal": "me"}, "Kerberos needs the SCM's principal"),
        ({"user": "om", "scm_principal": "s/h"}, "--user is without Kerberos only"),
    ],
)
def test_incomplete_options_are_refused(options: dict[str, Any], said: str) -> None:
    """The sentence names what is missing."""
    with pytest.raises(typer.BadParameter, match=said):
        identity(SiteConfig({}), **options)


def test_scm_option_wins_and_one_of_the_two_is_required() -> None:
    """Without a directory, `--scm` is needed."""
    config = SiteConfig({"ozone.scm.names": "s1"}, Path("/etc/ozone"))

    assert (Address("s2", 1),) == scm_addresses("s2:1", config)
    assert (Address("s1", 9860),) == scm_addresses("", config)
    with pytest.raises(typer.BadParameter, match="give --scm or --ozone-conf"):
        scm_addresses("", site_config(None))
