"""Reads the configuration of an Ozone cluster: the XML files in a directory, such as /etc/ozone.

Later files override earlier ones, except properties that an earlier file marks as final. `${name}`
in a value is replaced as in Hadoop's Configuration. Includes (XInclude) are not followed.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from ozone.clients.connection import PORT_MAX, Address
from ozone.clients.sasl import ProtectionLevel
from suture.errors import Code, RefusedError

FILES: Final = ("core-site.xml", "hdfs-site.xml", "ozone-site.xml")
DEPTH_MAX: Final = 20  # maximum substitutions in one value, as in Hadoop
VARIABLE: Final = re.compile(r"\$\{([^}$\s]+)\}")
ENVIRONMENT: Final = "env."
CLIENT_PORT: Final = ("client", 9860)
TRUE: Final = "true"


@dataclass(frozen=True, slots=True)
class SiteConfig:
    """The properties of a cluster, before `${name}` in values is replaced.

    `directory` is None if no file was read.
    """

    properties: Mapping[str, str]
    directory: Path | None = None

    def get(self, name: str, default: str = "") -> str:
        """Return the value of a property, or `default` if the property is not set or empty."""
        value = self.properties.get(name, "").strip()
        for _ in range(DEPTH_MAX):
            found = VARIABLE.search(value)
            if found is None:
                break
            value = value[: found.start()] + self._variable(found) + value[found.end() :]
        return value or default

    def _variable(self, found: re.Match[str]) -> str:
        name = found[1]
        if name.startswith(ENVIRONMENT):
            named, _, otherwise = name.removeprefix(ENVIRONMENT).partition(":-")
            return os.environ.get(named, otherwise)
        if name not in self.properties:
            raise RefusedError(
                Code.INVALID_CONFIG,
                f"cannot resolve {found[0]} in the files of {self.directory}: "
                "no property has this name",
            )
        return self.properties[name].strip()

    def is_set(self, name: str) -> bool:
        """Return whether a boolean property is true. The default of a boolean property is false."""
        return self.get(name).lower() == TRUE

    @property
    def is_kerberos(self) -> bool:
        """True if the cluster authenticates its users by Kerberos."""
        return (
            self.is_set("ozone.security.enabled")
            and self.get("hadoop.security.authentication").lower() == "kerberos"
        )

    @property
    def level_min(self) -> ProtectionLevel:
        """The lowest protection level that `hadoop.rpc.protection` allows.

        Raise RefusedError if the property names an unknown level.
        """
        named = self.get("hadoop.rpc.protection", "authentication").upper().split(",")
        try:
            return min(ProtectionLevel[word.strip()] for word in named)
        except KeyError as error:
            raise RefusedError(
                Code.INVALID_CONFIG,
                f"invalid hadoop.rpc.protection {self.get('hadoop.rpc.protection')!r}: expected "
                "authentication, integrity or privacy",
            ) from error

    def scm_addresses(self, service: tuple[str, int]) -> tuple[Address, ...]:
        """Return the address of a service on each SCM.

        `service` has the name of the service in the properties, and its default port. Raise
        RefusedError if the files do not name the SCMs.
        """
        if service_id := self.get("ozone.scm.service.ids"):
            default_id = self.get("ozone.scm.default.service.id", service_id)
            nodes = self.get(f"ozone.scm.nodes.{default_id}").split(",")
            suffixes = [f".{default_id}.{node.strip()}" for node in nodes]
            hosts = [self.get(f"ozone.scm.address{suffix}") for suffix in suffixes]
        else:
            named = (f"ozone.scm.{service[0]}.address", "ozone.scm.client.address")
            addresses = next(filter(None, map(self.get, named)), self.get("ozone.scm.names"))
            hosts = [address.strip().partition(":")[0] for address in addresses.split(",")]
            suffixes = [""] * len(hosts)
        found = [
            Address(host, self._port(service, suffix))
            for host, suffix in zip(hosts, suffixes, strict=True)
        ]
        if not all(one.host for one in found):
            raise RefusedError(
                Code.INVALID_CONFIG,
                f"the files of {self.directory} do not name the addresses of the SCMs",
                hint="set ozone.scm.names, or ozone.scm.service.ids and its nodes",
            )
        return tuple(found)

    def _port(self, service: tuple[str, int], suffix: str) -> int:
        """Return the port of a service on one SCM.

        It is taken from the address property, else from the port property, else from the default.
        """
        name, default = service
        _, _, own = self.get(f"ozone.scm.{name}.address{suffix}").rpartition(":")
        text = own or self.get(f"ozone.scm.{name}.port{suffix}") or str(default)
        if not (text.isascii() and text.isdigit() and int(text) <= PORT_MAX):
            raise RefusedError(
                Code.INVALID_CONFIG, f"invalid port {text!r} of ozone.scm.{name}.address{suffix}"
            )
        return int(text)


NO_CONFIG: Final = SiteConfig({})


def read_site_config(directory: Path) -> SiteConfig:
    """Return the properties in the XML files of a directory.

    Raise RefusedError if the directory has no such file, or if a file is invalid.
    """
    properties: dict[str, str] = {}
    final: set[str] = set()
    paths = [path for name in FILES if (path := directory / name).is_file()]
    if not paths:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot read Ozone's configuration: {directory} has no {FILES[-1]}",
        )
    for path in paths:
        for name, value, is_final in _properties(path):
            if name not in final:
                properties[name] = value
            if is_final:
                final.add(name)
    return SiteConfig(properties, directory)


def _properties(path: Path) -> list[tuple[str, str, bool]]:
    try:
        root = ElementTree.fromstring(path.read_bytes())  # noqa: S314 - the operator's own file
    except (OSError, ElementTree.ParseError) as error:
        raise RefusedError(Code.INVALID_CONFIG, f"cannot read {path}: {error}") from error
    found = []
    for item in root.iter("property"):
        name = (item.findtext("name") or "").strip()
        is_final = (item.findtext("final") or "").strip().lower() == TRUE
        if name:
            found.append((name, item.findtext("value") or "", is_final))
    return found
