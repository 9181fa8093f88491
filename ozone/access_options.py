"""Options of commands that call an Ozone cluster: SCM addresses, and identity of the caller."""

from pathlib import Path
from typing import Annotated

import typer

from ozone.clients.authentication import Identity, choose
from ozone.clients.connection import Address, parse_addresses
from ozone.clients.kerberos import KerberosIdentity
from ozone.clients.site_config import (
    CLIENT_PORT,
    NO_CONFIG,
    SiteConfig,
    read_site_config,
)
from suture.terminal.typer_options import option

ScmAddresses = Annotated[
    str,
    option(
        "HOST:PORT[,HOST:PORT...]", "All SCMs of the cluster (ozone.scm.client.address).", "--scm"
    ),
]
UserOption = Annotated[str, option("NAME", "User name for Ozone; default: the current user.")]
ConfOption = Annotated[
    Path | None, option("DIR", "Directory with ozone-site.xml, such as /etc/ozone.")
]
PrincipalOption = Annotated[
    str, option("NAME", "Kerberos principal; default: that of the ticket cache.")
]
KeytabOption = Annotated[
    Path | None, option("FILE", "Keytab of --principal; default: the ticket cache.")
]
ScmPrincipalOption = Annotated[
    str, option("NAME", "The SCM's principal (hdds.scm.kerberos.principal).")
]


def site_config(directory: Path | None) -> SiteConfig:
    """Return the configuration of the cluster from the XML files in `directory`.

    Return an empty configuration if `directory` is None.
    """
    return NO_CONFIG if directory is None else read_site_config(directory)


def scm_addresses(scm: str, config: SiteConfig) -> tuple[Address, ...]:
    """Return the addresses of the client ports of the SCMs.

    They are in `scm` (option --scm) or, if that is empty, in `config`. Raise typer.BadParameter if
    `scm` is invalid, or if both are missing.
    """
    if scm:
        try:
            return parse_addresses(scm)
        except ValueError as error:
            raise typer.BadParameter(f"--scm: {error}") from error
    if config.directory is None:
        raise typer.BadParameter("give --scm or --ozone-conf")
    return config.scm_addresses(CLIENT_PORT)


def identity_of(
    config: SiteConfig, *, user: str, principal: str, keytab: Path | None, scm_principal: str
) -> Identity:
    """Return the identity of the caller for calls to the cluster.

    It is for Kerberos if the cluster or an option requires Kerberos, and otherwise for SIMPLE
    authentication. Raise typer.BadParameter if the options contradict each other.
    """
    named = scm_principal or config.get("hdds.scm.kerberos.principal")
    if not (config.is_kerberos or principal or keytab or scm_principal):
        return choose(user)
    if user:
        raise typer.BadParameter("--user is without Kerberos only: give --principal instead")
    if keytab and not principal:
        raise typer.BadParameter("--keytab needs --principal")
    if not named:
        raise typer.BadParameter(
            "Kerberos needs the SCM's principal: give --ozone-conf or --scm-principal"
        )
    return KerberosIdentity(named, principal, keytab, config.level_min)
