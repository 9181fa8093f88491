"""What every section of options is made of: units, and a table that is strict about its names."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from agent.config.quantity import Unit, parse_bytes, parse_bytes_per_s, parse_duration_s

LIVE: Final[dict[str, Any]] = {"live": True}

BYTES: Final = Unit("bytes", parse_bytes)
BYTES_PER_S: Final = Unit("bytes per second", parse_bytes_per_s)
SECONDS: Final = Unit("seconds", parse_duration_s)

Bytes = Annotated[int, BeforeValidator(BYTES)]
BytesPerS = Annotated[int, BeforeValidator(BYTES_PER_S)]
Seconds = Annotated[float, BeforeValidator(SECONDS)]
WholeSeconds = Annotated[int, BeforeValidator(SECONDS)]
Count = Annotated[int, Field(strict=True)]
Switch = Annotated[bool, Field(strict=True)]
Address = Annotated[str, StringConstraints(pattern=r"^(\[[0-9a-fA-F:]+\]|[^:\s]+):\d{1,5}$")]


class Section(BaseModel):
    """One table of the file: frozen, and strict about names."""

    model_config = ConfigDict(extra="forbid", frozen=True)
