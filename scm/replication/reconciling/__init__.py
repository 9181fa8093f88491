"""Replicas that differ or are damaged: who may be reconciled, when, and by whose decision."""
