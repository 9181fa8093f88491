"""Reconcile of a replica with its peers: compare, plan (`agent.plan`), fetch, repair, verify."""
