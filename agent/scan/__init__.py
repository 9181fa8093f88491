"""Workers that read the data of this host: scans, change watch, parity scrub and volume checks."""
