"""What an operator may choose of a verification: rules, guards and sizes, by flag or file.

    flag  >  file  >  what the control plane says in its snapshot  >  default

A file is TOML with the names of `OPTIONS` at its top; an unknown name is refused, not ignored.
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
    """One number: what it means, and what it may be."""

    name: str
    meaning: str
    default: int
    low: int
    high: int
    is_rule: bool = False
    """A number of `health.rules.Rules`, of which the control plane may say its own."""

    def checked(
        self, value: object, where: str, refused: type[OptionRefused] = OptionRefused
    ) -> int:
        """Return the value. Raises `refused` for what it may not be."""
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
        _rule("ec_redundancy", "indexes beyond data that stay online then", 0, 20),
        _rule("leaving_min", "replicas elsewhere before a node leaves; 0: all", 0, 100),
        _rule("enough_copies", "replicas below which copies are made; 0: all", 0, 100),
        _rule("most_copies", "replicas above which some are deleted; 0: all", 0, 100),
        _rule("best_origin_copies", "stuck quasi-closed: of the best origins", 1, 100),
        _rule("other_origin_copies", "stuck quasi-closed: of each other origin", 1, 100),
        VerifyOption("age_max_s", "a snapshot older than this is refused; 0: any age", 0, 0, 10**9),
        VerifyOption("replication_factor", "reports alone: copies of a Ratis container", 3, 1, 100),
        VerifyOption("ec_data", "reports alone: data shards of an EC container", 3, 1, 31),
        VerifyOption("ec_parity", "reports alone: parity shards of an EC container", 2, 1, 31),
        VerifyOption("reporting_min_percent", "nodes that must have reported", 50, 0, 100),
        VerifyOption("sample_max", "container ids named of each kind", 100, 1, 10_000),
    )
}
"""Everything that may be chosen, in the order in which it is told."""


@dataclass(frozen=True, slots=True)
class ResolvedOptions:
    """What was chosen, by flags and a file; the rest is the snapshot's or the default."""

    flags: Mapping[str, int]
    file: Mapping[str, int]

    @classmethod
    def of(cls, flags: Mapping[str, int | None], file: Path | None) -> "ResolvedOptions":
        """Return what these flags, of which None is not given, and a file say.

        Raises OptionRefused for a file that cannot be read, an unknown name, or a wrong value;
        FlagRefused for one of a flag.
        """
        given = {
            name: OPTIONS[name].checked(value, f"--{name.replace('_', '-')}", FlagRefused)
            for name, value in flags.items()
            if value is not None
        }
        return cls(given, _read(file) if file else {})

    def own(self) -> dict[str, int]:
        """Return what was said, a flag before the file."""
        return {**self.file, **self.flags}

    def rules(self) -> dict[str, int]:
        """Return what was said of rules."""
        return {name: value for name, value in self.own().items() if OPTIONS[name].is_rule}

    def value(self, name: str) -> int:
        """Return an option that is no rule."""
        assert not OPTIONS[name].is_rule, "the snapshot may say another number"
        return self.own().get(name, OPTIONS[name].default)

    def explained(self, snapshot_rules: Mapping[str, int]) -> list[tuple[str, int, str, str]]:
        """Return name, value, whence and meaning of every option."""
        found = []
        for name, option in OPTIONS.items():
            sources = ((FLAG, self.flags), (FILE, self.file), (SNAPSHOT, snapshot_rules))
            whence, value = next(
                ((source, said[name]) for source, said in sources if name in said),
                (DEFAULT, option.default),
            )
            found.append((name, value, whence, option.meaning))
        return found


def _read(file: Path) -> dict[str, int]:
    try:
        said: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OptionRefused(f"{file} cannot be read: {error}") from error
    strange = sorted(set(said) - set(OPTIONS))
    if strange:
        raise OptionRefused(
            f"{file}: unknown {', '.join(strange)}", hint=f"known: {', '.join(OPTIONS)}"
        )
    return {name: OPTIONS[name].checked(value, str(file)) for name, value in said.items()}
