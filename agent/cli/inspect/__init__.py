"""Commands that show states, replicas, histories and scans. They change no data."""
