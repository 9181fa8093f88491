"""The operator's command line, `suture`."""
