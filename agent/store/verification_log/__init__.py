"""Verification log of a volume: verifications, repairs and deletes, in a tamper-evident form."""
