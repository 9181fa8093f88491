"""Commands that show what is: status, replicas, histories, scans. They change no data."""
