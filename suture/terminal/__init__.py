"""Common parts of the commands: options, connection, output."""
