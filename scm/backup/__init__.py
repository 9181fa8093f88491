"""Backups of the control plane's state: creation, verification, and restore."""
