"""What was verified, and proof of it: the verification log, and statements for auditors."""
