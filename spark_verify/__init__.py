"""Compares every replica's reported checksums cluster-wide and plans what to reconcile."""
