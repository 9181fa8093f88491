"""Commands to datanodes: queued, limited by each datanode's load, sent, and answered."""
