"""Backups of the control plane's state: taken, looked through, restored."""
