"""Commands for evidence: verification logs, attestations, bundles and samples."""
