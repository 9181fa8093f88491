"""Functions that write values, names and types as SQL text."""

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema


def quoted(name: str) -> str:
    """Return a name as a quoted SQL identifier. Dots in `name` separate its parts."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in name.split("."))


def text(words: str) -> str:
    """Return a string as an SQL literal."""
    return "'" + words.replace("\\", "\\\\").replace("'", "\\'") + "'"


def texts(words: Iterable[str]) -> str:
    """Return strings as SQL literals, separated by commas."""
    return ", ".join(map(text, words))


def literal(value: bool | int | str | Sequence[str] | None) -> str:
    """Return a value as an SQL literal. A sequence of strings becomes an array."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return text(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value}L" if isinstance(value, int) else f"array({texts(value)})"


def types_of(schema: pa.Schema) -> dict[str, str]:
    """Return the Spark type of each column of a schema, by name."""
    return {field.name: field.dataType.simpleString() for field in from_arrow_schema(schema)}


def casts(schema: pa.Schema, same: Mapping[str, str | int] | None = None) -> list[str]:
    """Return SQL expressions that select the columns of a schema and convert them to their types.

    A column in `same` has the given value in all rows.
    """
    given = {name: literal(value) for name, value in (same or {}).items()}
    return [
        f"CAST({given.get(name, f'`{name}`')} AS {kind}) AS `{name}`"
        for name, kind in types_of(schema).items()
    ]


def local_rows(
    spark: SparkSession, schema: pa.Schema, rows: Iterable[Sequence[object]]
) -> DataFrame:
    """Return a DataFrame with the given rows.

    `createDataFrame` is not used, because Spark would then start a Python process to read the rows.
    """
    given = [f"({', '.join(map(literal, row))})" for row in rows]  # type: ignore[arg-type]
    values = ", ".join(given or [f"({', '.join('NULL' for _ in schema)})"])
    names = ", ".join(f"`{name}`" for name in schema.names)
    table = f"VALUES {values} AS t ({names}) WHERE {bool(given)}"
    return spark.sql(f"SELECT {', '.join(casts(schema))} FROM {table}")  # noqa: S608 -- texts are quoted
