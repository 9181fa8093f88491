"""Functions that load, check and reload the agent's options."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from agent.config.options import AgentConfig
from agent.config.ozone import external_scm_conflicts, ozone_scms, unsupported_security
from suture.config.section import LIVE, ConfigSection
from suture.config.toml_file import ParsedConfig, read
from suture.config.validation import Contradiction, checked
from suture.runtime.loopback import is_loopback

ANY_ADDRESS: Final = frozenset({"0.0.0.0", "[::]"})  # noqa: S104 - refused without `advertise`


def load(path: Path) -> AgentConfig:
    """Read the config file at `path` and its drop-in files, and return the checked options.

    Raise RefusedError(INVALID_CONFIG) if an option is invalid. The error text has the file and line
    of every fault.
    """
    return load_written(path)[0]


def load_written(path: Path) -> tuple[AgentConfig, ParsedConfig]:
    """Return the options, and the file and line where each value is written."""
    written = read(path)
    config = checked(
        AgentConfig,
        written,
        contradictions,
        source=f"config file {path}",
        hint="suture config explain lists all options",
    )
    return config, written


def contradictions(config: AgentConfig) -> Iterator[Contradiction]:
    """Yield groups of options whose values are valid alone but contradict each other.

    Each group comes with a text for the error message.
    """
    storage, scan, node = config.storage, config.scan, config.node
    if 0 < scan.ceiling_bytes_per_s < scan.floor_bytes_per_s:
        yield (
            (("scan", "floor_bytes_per_s"), ("scan", "ceiling_bytes_per_s")),
            "the floor is above the ceiling",
        )
    if scan.gap_min_s > scan.data_interval_s:
        yield (
            (("scan", "gap_min_s"), ("scan", "data_interval_s")),
            "what must be read once in the interval may not be read so soon again",
        )
    if node.listen.rpartition(":")[0] in ANY_ADDRESS and node.advertise is None:
        yield (
            (("node", "listen"), ("node", "advertise")),
            "others cannot dial the address of all interfaces: set node.advertise, too",
        )
    yield from _unsecured(config)
    yield from unsupported_security(config)
    yield from external_scm_conflicts(config)
    for first, second in combinations(storage.volumes, 2):
        if first == second or first in second.parents or second in first.parents:
            yield ((("storage", "volumes"),), f"{first} and {second} share a directory")


def _unsecured(config: AgentConfig) -> Iterator[Contradiction]:
    """Yield TLS options that are incomplete or contradict each other.

    If TLS is not configured, and `allow_plaintext` is not set, also yield the options whose
    addresses are not loopback addresses.
    """
    tls, node = config.tls, config.node
    files = {"certificate": tls.certificate, "key": tls.key, "ca": tls.ca}
    missing = [name for name, path in files.items() if path is None]
    if missing and len(missing) < len(files):
        yield tuple(("tls", name) for name in files), "set all three, or none"
    if not missing and tls.allow_plaintext:
        yield (
            (("tls", "certificate"), ("tls", "allow_plaintext")),
            "with certificates nothing is plaintext: remove one",
        )
    if tls.certificate is not None or tls.allow_plaintext:
        return
    scm = () if ozone_scms(node.scm) else node.scm  # Ozone's SCMs have another error text
    for key, addresses in (("listen", (node.listen,)), ("scm", scm)):
        for address in addresses:
            if not is_loopback(address):
                yield (
                    (("node", key), ("tls", "certificate")),
                    f"{address} is not loopback, and without TLS anybody on the network could read "
                    "and change what is there: set tls.certificate, tls.key and tls.ca (suture tls "
                    "init makes them), or tls.allow_plaintext",
                )


def diff_options(before: AgentConfig, after: AgentConfig) -> dict[str, bool]:
    """Return the full names of the options whose values differ between `before` and `after`.

    The value of an option is True if a reload can change it, and False if it needs a restart.
    """
    return {
        name: is_live
        for name, is_live in _flags(type(before))
        if _value(before, name) != _value(after, name)
    }


def with_live(before: AgentConfig, after: AgentConfig) -> AgentConfig:
    """Return `before` with the values of the live options of `after`.

    Live options are those that can change without a restart. The result is the config that is in
    effect after a reload.
    """
    updates: dict[str, dict[str, object]] = {}
    for name, is_live in _flags(AgentConfig):
        if is_live:
            section, _, key = name.rpartition(".")
            updates.setdefault(section, {})[key] = _value(after, name)
    sections = {
        section: getattr(before, section).model_copy(update=update)
        for section, update in updates.items()
    }
    return before.model_copy(update=sections)


def _flags(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, bool]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, ConfigSection):
            yield from _flags(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field.json_schema_extra == LIVE


def _value(config: object, name: str) -> object:
    for part in name.split("."):
        config = getattr(config, part)
    return config
