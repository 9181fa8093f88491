"""Formats values and names as SQL text."""

from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame, SparkSession


def quoted(name: str) -> str:
    """Return a name as a quoted SQL identifier; dots separate its parts."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in name.split("."))


def text(words: str) -> str:
    """Return a string as an SQL literal."""
    return "'" + words.replace("\\", "\\\\").replace("'", "\\'") + "'"


def texts(words: Iterable[str]) -> str:
    """Return strings as SQL literals, separated by commas."""
    return ", ".join(map(text, words))


def literal(value: bool | int | str | Sequence[str] | None) -> str:
    """Return a value as an SQL literal."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return text(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value}L" if isinstance(value, int) else f"array({texts(value)})"


def local_rows(
    spark: SparkSession, columns: dict[str, str], rows: Iterable[Sequence[object]]
) -> DataFrame:
    """Return a DataFrame of rows known to the driver, with columns of these types.

    `createDataFrame` is not used, because Spark would start Python to read its rows.
    """
    given = [f"({', '.join(map(literal, row))})" for row in rows]  # type: ignore[arg-type]
    values = ", ".join(given or [f"({', '.join('NULL' for _ in columns)})"])
    names = [f"`{name}`" for name in columns]
    casts = (
        f"CAST({name} AS {kind}) AS {name}"
        for name, kind in zip(names, columns.values(), strict=True)
    )
    table = f"VALUES {values} AS t ({', '.join(names)}) WHERE {bool(given)}"
    return spark.sql(f"SELECT {', '.join(casts)} FROM {table}")  # noqa: S608 -- texts are quoted
