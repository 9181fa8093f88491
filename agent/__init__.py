"""The agent, a daemon on each storage host: stores, serves, scans and repairs container
replicas."""
