"""Commands to datanodes: their queues, their limits per datanode, and their outcomes."""
