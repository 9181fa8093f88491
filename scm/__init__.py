"""The reference control plane. One node, not highly available."""
