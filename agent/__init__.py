"""The daemon on a storage host: stores, serves, scans and repairs container replicas."""
