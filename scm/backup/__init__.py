"""Backups of the control plane's state: take, verify, restore."""
