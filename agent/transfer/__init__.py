"""A whole replica from one datanode to another: what is sent, and how it is received."""
