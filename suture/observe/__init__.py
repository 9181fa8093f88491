"""Log events, audit and metrics of all programs, and text made safe for terminals."""
