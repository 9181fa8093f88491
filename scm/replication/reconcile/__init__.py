"""Reconciles of replicas that differ or are damaged: eligibility, retries, and orders."""
