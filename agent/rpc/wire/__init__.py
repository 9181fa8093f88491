"""Messages of the wire to values and back; errors as they cross it."""
