"""Transfer of a whole replica from one datanode to another: sending and receiving."""
