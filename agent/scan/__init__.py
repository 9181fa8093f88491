"""Workers that read this host's data: background, on-demand, change, parity and volume checks."""
