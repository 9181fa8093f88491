"""Log events, the audit log and metrics of all programs, and the escaping of text for terminals."""
