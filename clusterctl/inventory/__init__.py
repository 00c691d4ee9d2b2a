"""Read the inventory strictly and check it as a whole."""
