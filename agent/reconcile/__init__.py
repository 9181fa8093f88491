"""Reconcile of a replica with its peers: survey, plan (`agent.plan`), fetch, repair, verify."""
