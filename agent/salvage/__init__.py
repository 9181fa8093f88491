"""Salvage of files from volumes, read-only and without a control plane or an agent."""
