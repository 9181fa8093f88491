"""Commands that show state: status, replicas, histories, scans. They change no data."""
