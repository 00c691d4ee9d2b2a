"""What people write: the inventory, read strictly and checked as a whole."""
