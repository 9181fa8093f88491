"""The options of a verification: health rules, limits and sizes, set by flags or in a file.

    flag  >  file  >  the control plane's value in the snapshot  >  default

The file is TOML, with names of `VerifyOptions` at the top level. An unknown name is an error.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from health.rules import Rules
from suture.config.section import ConfigSection, Count
from suture.config.toml_file import read_each
from suture.config.validation import checked

Replicas = Annotated[Count, Field(ge=0, le=100)]
Copies = Annotated[Count, Field(ge=1, le=100)]
Shards = Annotated[Count, Field(ge=1, le=31)]


class VerifyOptions(ConfigSection):
    """The options of a verification. The first options are parameters of `health.rules.Rules`."""

    maintenance_min: Replicas = Field(2, description="replicas that stay online in maintenance")
    ec_redundancy: Count = Field(
        1, ge=0, le=20, description="EC shards beyond the data that stay online in maintenance"
    )
    leaving_min: Replicas = Field(0, description="replicas elsewhere before a node leaves; 0 = all")
    enough_copies: Replicas = Field(0, description="copies are made below this number; 0 = all")
    most_copies: Replicas = Field(0, description="replicas are deleted above this number; 0 = all")
    best_origin_copies: Copies = Field(3, description="stuck quasi-closed: copies of best origins")
    other_origin_copies: Copies = Field(2, description="stuck quasi-closed: copies of each other")
    max_age_s: Count = Field(
        0, ge=0, le=10**9, description="maximum age of a snapshot in seconds; 0 = unlimited"
    )
    replication_factor: Copies = Field(3, description="without a snapshot: copies of a container")
    ec_data: Shards = Field(3, description="without a snapshot: data shards of an EC container")
    ec_parity: Shards = Field(2, description="without a snapshot: parity shards of an EC container")
    # With fewer reporting datanodes, missing reports would look like data loss.
    reporting_min_percent: Count = Field(
        50, ge=0, le=100, description="percentage of nodes that report"
    )
    # The same number as in Ozone's report.
    sample_max: Count = Field(100, ge=1, le=10_000, description="container ids listed per kind")

    @classmethod
    def of(cls, flags: Mapping[str, int | None], file: Path | None) -> "VerifyOptions":
        """Return the options from `flags`, and from the file for all flags that are None.

        Raise RefusedError if the file cannot be read, has an unknown name, or has an invalid value.
        """
        given = {name: value for name, value in flags.items() if value is not None}
        if file is None:
            return cls(**given)
        said = checked(
            cls,
            read_each([file]),
            lambda _: (),
            source=str(file),
            hint=f"known: {', '.join(NAMES)}",
        )
        return said.model_copy(update=given)

    @property
    def own_rules(self) -> dict[str, int]:
        """Values of the health rules that are set by a flag or in the options file, by name."""
        return self.model_dump(include=RULES & self.model_fields_set)

    @property
    def assumed(self) -> dict[str, int]:
        """Replication that is assumed for all containers if there is no snapshot.

        In this case, only reports of datanodes are compared, and reports do not contain the
        replication.
        """
        return self.model_dump(include={"replication_factor", "ec_data", "ec_parity"})

    def explained(
        self, flags: Mapping[str, int | None], snapshot_rules: Mapping[str, int]
    ) -> dict[str, dict[str, Any]]:
        """Return the value, the source and the meaning of every option, by name."""
        found = {}
        own = self.model_dump(exclude_unset=True)
        for name, field in type(self).model_fields.items():
            sources = {"flag": flags, "file": own, "snapshot": snapshot_rules}
            given = [key for key, values in sources.items() if values.get(name) is not None]
            source = given[0] if given else "default"
            value = sources[source][name] if given else field.default
            found[name] = {"value": value, "from": source, "meaning": field.description}
        return found


NAMES: Final = tuple(VerifyOptions.model_fields)
RULES: Final = set(NAMES) & set(asdict(Rules()))
