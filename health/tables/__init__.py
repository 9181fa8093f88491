"""Tables that the control plane and the Spark job give each other: their columns, in one place."""
