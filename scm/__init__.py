"""The reference control plane (SCM). It runs on one node and is not highly available."""
