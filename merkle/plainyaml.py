"""YAML of descriptors: only what means no more than it says.

A text of a few hundred bytes can stand for gigabytes, by aliases and merge keys, and one that nests
deep takes long to read. No descriptor has either, whoever wrote it.
"""

from typing import Any, Final

import yaml

DEPTH_MAX: Final = 8  # ours have one level, Ozone's two


class PlainLoader(yaml.SafeLoader):
    """YAML's plain types; raises YAMLError for an alias, and for what nests too deep.

    In Python and not in C: there, what nests deep ends the process.
    """

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Read one value."""
        if self.check_event(yaml.AliasEvent) or self._depth >= DEPTH_MAX:
            raise yaml.YAMLError("an alias, or what nests too deep")
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node
