"""A YAML loader for container descriptors that rejects aliases and deep nesting.

With aliases and merge keys, a few hundred bytes of text can expand to gigabytes, and deep nesting
takes a long time to parse. No valid descriptor has either.
"""

from typing import Any, Final

import yaml

DEPTH_MAX: Final = 8  # Suture's descriptors have one level, Ozone's two


class PlainLoader(yaml.SafeLoader):
    """Loads YAML's plain types. Raises YAMLError for an alias, or if the nesting is deeper than
    DEPTH_MAX.

    The loader uses the parser that is written in Python, because deep nesting crashes the process
    in the parser that is written in C.
    """

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next node. Raise YAMLError for an alias, or if the nesting is deeper than
        DEPTH_MAX."""
        if self.check_event(yaml.AliasEvent) or self._depth >= DEPTH_MAX:
            raise yaml.YAMLError("an alias, or what nests too deep")
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node
