"""Reconciles of replicas that differ or are damaged: which are possible, ordered, and retried."""
