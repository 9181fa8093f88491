"""Decisions only: facts in, actions out. No clock, no disk, no socket."""
