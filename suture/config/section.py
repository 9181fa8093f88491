"""The base class of all option sections, and the types of options with their units."""

from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
)

from suture.config.quantity import OptionUnit, parse_bytes, parse_bytes_per_s, parse_duration_s

HOST_AND_PORT: Final = r"(\[[0-9a-fA-F:]+\]|[^:\s]+):\d{1,5}"
PORT_MAX: Final = 65_535
LIVE: Final[dict[str, Any]] = {"live": True}

BYTES: Final = OptionUnit("bytes", parse_bytes)
BYTES_PER_S: Final = OptionUnit("bytes per second", parse_bytes_per_s)
SECONDS: Final = OptionUnit("seconds", parse_duration_s)
MILLISECONDS: Final = OptionUnit("milliseconds", lambda text: round(parse_duration_s(text) * 1000))


def checked_port(address: str) -> str:
    """Return an address unchanged. Raise ValueError if its port is greater than 65535, because gRPC
    would use only the lower 16 bits of such a port."""
    if address and int(address.rpartition(":")[2]) > PORT_MAX:
        raise ValueError(f"{address!r}: a port is at most {PORT_MAX}")
    return address


Bytes = Annotated[int, BeforeValidator(BYTES)]
BytesPerS = Annotated[int, BeforeValidator(BYTES_PER_S)]
Seconds = Annotated[float, BeforeValidator(SECONDS)]
WholeSeconds = Annotated[int, BeforeValidator(SECONDS)]
Milliseconds = Annotated[int, BeforeValidator(MILLISECONDS), Field(ge=0, le=86_400_000)]
Count = Annotated[int, Field(strict=True)]
Switch = Annotated[bool, Field(strict=True)]
Address = Annotated[
    str, StringConstraints(pattern=rf"^{HOST_AND_PORT}$"), AfterValidator(checked_port)
]
AddressOrNone = Annotated[
    str, StringConstraints(pattern=rf"^({HOST_AND_PORT})?$"), AfterValidator(checked_port)
]


class ConfigSection(BaseModel):
    """A table of a config file. Instances are immutable. Unknown option names are invalid."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _without_nul(cls, value: object) -> object:
        """Return a value unchanged. Raise ValueError if it contains a NUL character, because paths
        and names must not."""
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and "\0" in text:
                raise ValueError(f"{text!r} holds a NUL character")
        return value
