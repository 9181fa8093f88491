"""Defines the options of a verification: rules, limits and sizes, by flag or file.

    flag  >  file  >  the control plane's value in the snapshot  >  default

A file is TOML with names of `OPTIONS` at the top level; an unknown name is an error.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from health.rules import Rules
from spark_verify.errors import FlagRefused, OptionRefused

FLAG: Final = "flag"
FILE: Final = "file"
SNAPSHOT: Final = "snapshot"
DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class VerifyOption:
    """A numeric option: its meaning and its valid range."""

    name: str
    meaning: str
    default: int
    low: int
    high: int
    is_rule: bool = False
    """True for a parameter of `health.rules.Rules`, which the control plane's snapshot may also
    set."""

    @property
    def flag(self) -> str:
        """Return the name of the option on the command line, without the unit."""
        return f"--{self.name.removesuffix('_s').replace('_', '-')}"

    def checked(
        self, value: object, where: str, refused: type[OptionRefused] = OptionRefused
    ) -> int:
        """Return the value. Raise `refused` if it is invalid."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise refused(f"{where}: {self.name} must be a whole number, is {value!r}")
        if not self.low <= value <= self.high:
            raise refused(f"{where}: {self.name} is {value}, must be {self.low} to {self.high}")
        return value


def _rule(name: str, meaning: str, low: int, high: int) -> VerifyOption:
    return VerifyOption(name, meaning, getattr(Rules(), name), low, high, is_rule=True)


OPTIONS: Final = {
    option.name: option
    for option in (
        _rule("maintenance_min", "replicas that stay online during maintenance", 0, 100),
        _rule(
            "ec_redundancy", "EC shards beyond the data that stay online during maintenance", 0, 20
        ),
        _rule("leaving_min", "replicas on other nodes before a node leaves; 0 = all", 0, 100),
        _rule("enough_copies", "copies are made below this number of replicas; 0 = all", 0, 100),
        _rule("most_copies", "replicas are deleted above this number; 0 = all", 0, 100),
        _rule("best_origin_copies", "stuck quasi-closed: copies of the best origins", 1, 100),
        _rule("other_origin_copies", "stuck quasi-closed: copies of each other origin", 1, 100),
        VerifyOption(
            "max_age_s", "maximum age of a snapshot in seconds; 0 = unlimited", 0, 0, 10**9
        ),
        VerifyOption(
            "replication_factor", "without a snapshot: copies of a Ratis container", 3, 1, 100
        ),
        VerifyOption("ec_data", "without a snapshot: data shards of an EC container", 3, 1, 31),
        VerifyOption("ec_parity", "without a snapshot: parity shards of an EC container", 2, 1, 31),
        # With fewer, silence would look like data loss.
        VerifyOption(
            "reporting_min_percent", "percentage of nodes that must have reported", 50, 0, 100
        ),
        # As in Ozone's report.
        VerifyOption("sample_max", "container ids listed per kind", 100, 1, 10_000),
    )
}
"""All options, in the order of output."""

DEFAULTS: Final = {name: option.default for name, option in OPTIONS.items()}


@dataclass(frozen=True, slots=True)
class ResolvedOptions:
    """Options set by flags and a file; others come from the snapshot or the default."""

    own: Mapping[str, tuple[int, str]]
    """Value and source of each option that was set."""

    @classmethod
    def of(cls, flags: Mapping[str, int | None], file: Path | None) -> "ResolvedOptions":
        """Return the options set by flags (None = not given) and by a file.

        Raise FlagRefused for an invalid flag value. Raise OptionRefused for an unreadable file, or
        an unknown name or an invalid value in it.
        """
        given = {
            name: (OPTIONS[name].checked(value, OPTIONS[name].flag, FlagRefused), FLAG)
            for name, value in flags.items()
            if value is not None
        }
        said = _read(file) if file else {}
        return cls({name: (value, FILE) for name, value in said.items()} | given)

    def rules(self) -> dict[str, int]:
        """Return the rules that were set."""
        return {name: value for name, (value, _) in self.own.items() if OPTIONS[name].is_rule}

    def numbers(self) -> dict[str, int]:
        """Return the values of all options that are not rules."""
        found = self.explained({})
        return {name: value for name, value, _, _ in found if not OPTIONS[name].is_rule}

    def explained(self, snapshot_rules: Mapping[str, int]) -> list[tuple[str, int, str, str]]:
        """Return name, value, source and meaning of every option."""
        found = {name: (option.default, DEFAULT) for name, option in OPTIONS.items()}
        found |= {name: (value, SNAPSHOT) for name, value in snapshot_rules.items()}
        found |= self.own
        return [(name, *found[name], option.meaning) for name, option in OPTIONS.items()]


def _read(file: Path) -> dict[str, int]:
    try:
        said: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OptionRefused(f"cannot read {file}: {error}") from error
    strange = sorted(set(said) - set(OPTIONS))
    if strange:
        raise OptionRefused(
            f"cannot use {file}: unknown options {', '.join(strange)}",
            hint=f"known: {', '.join(OPTIONS)}",
        )
    return {name: OPTIONS[name].checked(value, str(file)) for name, value in said.items()}
