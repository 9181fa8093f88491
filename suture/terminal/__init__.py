"""The common parts of the commands: options, connections and output."""
