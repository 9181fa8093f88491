"""Pure decisions of reconcile: facts in, actions out. It uses no clock, disk or socket."""
