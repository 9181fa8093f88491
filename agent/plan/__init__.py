"""Decisions of reconcile: facts in, actions out. No clock, disk or socket is used."""
