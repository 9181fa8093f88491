"""Verification log of a volume: a tamper-evident record of verifications, repairs and deletes."""
