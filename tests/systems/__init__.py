"""Every supported system: what the roles write and install there, checked without a machine of that system."""
