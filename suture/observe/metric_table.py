"""Tables of Prometheus metrics: the name, type, help text and labels of each metric, and how to
read its values.

At each scrape, every table gets the same object with the current figures. A table reads a list of
items from the figures, for example the volumes. Each metric of the table has one sample per item.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

LabelledItems = Iterable[tuple[tuple[str, ...], Any]]
"""Pairs (label values of an item, item)."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A metric: its type, its help text, and the function that returns its value for an item."""

    family: type[GaugeMetricFamily | CounterMetricFamily]
    meaning: str
    value: Callable[[Any], float] = float


gauge = partial(MetricRow, GaugeMetricFamily)
counter = partial(MetricRow, CounterMetricFamily)


@dataclass(frozen=True, slots=True)
class MetricTable:
    """Metrics by name, with the same labels. Each metric has one sample per item, for example per
    volume."""

    labels: tuple[str, ...]
    items: Callable[[Any], LabelledItems]
    """Function that returns the items, given the figures."""
    rows: Mapping[str, MetricRow]

    def __call__(self, figures: object) -> Iterator[Metric]:
        """Yield the metrics with their samples for these figures."""
        items = list(self.items(figures))
        for name, row in self.rows.items():
            metric = row.family(name, row.meaning, labels=self.labels)
            for words, item in items:
                metric.add_metric(words, float(row.value(item)))
            yield metric


class TableCollector(Collector):
    """Collects the metrics of several tables. At each scrape, `figures` is called once, and every
    table gets the result."""

    def __init__(
        self,
        tables: Sequence[Callable[[Any], Iterable[Metric]]],
        figures: Callable[[], object],
    ) -> None:
        self._tables = tables
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all tables."""
        figures = self._figures()
        for table in self._tables:
            yield from table(figures)


def exposition(registry: CollectorRegistry) -> bytes:
    """Return the metrics in the text format of Prometheus."""
    return generate_latest(registry)


def alone(figures: object) -> LabelledItems:
    """Return the figures as a single item without labels. Used for metrics of the complete
    process."""
    return [((), figures)]


def named(name: str, items: Callable[[Any], Iterable[Any]]) -> Callable[[Any], LabelledItems]:
    """Return a function that returns the items of the figures. `items` reads the items from the
    figures. An item has one label, whose value is the item's attribute with the name `name`."""
    return lambda figures: [((getattr(item, name),), item) for item in items(figures)]


def counted(counts: Callable[[Any], Mapping[Any, Any]]) -> Callable[[Any], LabelledItems]:
    """Return a function that returns the values of a mapping as items. `counts` reads the mapping
    from the figures. The key of an item is the value of its label, or a tuple with the values of
    several labels."""
    return lambda figures: [
        (key if isinstance(key, tuple) else (key,), value)
        for key, value in sorted(counts(figures).items())
    ]
