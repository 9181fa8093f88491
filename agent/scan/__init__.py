"""Workers that read this host's data: scans, the change watch, the parity scrub and volume
checks."""
