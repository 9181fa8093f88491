"""Commands for auditors and bug reports: verification logs, attestations, bundles, samples."""
