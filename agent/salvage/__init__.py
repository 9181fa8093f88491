"""Salvage of files from volumes alone: without a control plane or an agent, and read-only."""
