"""Transfer of a complete replica from one datanode to another: sender and receiver."""
