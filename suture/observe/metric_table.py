"""Tables of Prometheus metrics: name, type, help text, labels, and how a scrape reads the values.

At each scrape, every table receives the same object with the figures of one moment. A table reads
items from the figures, such as volumes or the members of an enumeration. Each metric of the table
has one sample per item.
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
"""Pairs of an item's label values and the item itself."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A metric of a table: its type, its help text, and the function that reads the value of an
    item."""

    family: type[GaugeMetricFamily | CounterMetricFamily]
    meaning: str
    value: Callable[[Any], float] = float


gauge = partial(MetricRow, GaugeMetricFamily)
counter = partial(MetricRow, CounterMetricFamily)


@dataclass(frozen=True, slots=True)
class MetricTable:
    """Metrics by name. All have the same labels, and one sample for each item, such as each
    volume."""

    labels: tuple[str, ...]
    items: Callable[[Any], LabelledItems]
    """Function that takes the figures and returns their items."""
    rows: Mapping[str, MetricRow]

    def __call__(self, figures: object) -> Iterator[Metric]:
        """Yield the metrics with their samples."""
        items = list(self.items(figures))
        for name, row in self.rows.items():
            metric = row.family(name, row.meaning, labels=self.labels)
            for words, item in items:
                metric.add_metric(words, float(row.value(item)))
            yield metric


class TableCollector(Collector):
    """Collector that reads the figures at each scrape and makes the metrics of every table from
    them."""

    def __init__(
        self,
        tables: Sequence[Callable[[Any], Iterable[Metric]]],
        figures: Callable[[], object],
    ) -> None:
        self._tables = tables
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        figures = self._figures()
        for table in self._tables:
            yield from table(figures)


def exposition(registry: CollectorRegistry) -> bytes:
    """Return the metrics in Prometheus' text format."""
    return generate_latest(registry)


def alone(figures: object) -> LabelledItems:
    """Return the figures as the only item, without labels; for metrics of the whole process."""
    return [((), figures)]


def named(name: str, items: Callable[[Any], Iterable[Any]]) -> Callable[[Any], LabelledItems]:
    """Return a function that reads the items from the figures with `items`. The only label of an
    item is its attribute `name`."""
    return lambda figures: [((getattr(item, name),), item) for item in items(figures)]


def counted(counts: Callable[[Any], Mapping[Any, Any]]) -> Callable[[Any], LabelledItems]:
    """Return a function that reads a mapping from the figures with `counts`. Each value of the
    mapping is an item; its key is the label value, or a tuple with one value per label."""
    return lambda figures: [
        (key if isinstance(key, tuple) else (key,), value)
        for key, value in sorted(counts(figures).items())
    ]
