"""What people and plans order, shown first and then done; and nodes that leave."""
