"""Pure decisions of reconcile: facts in, actions out. No clock, no disk, no socket."""
