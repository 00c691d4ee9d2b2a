"""Packages, files, units and kernel settings of a node: what they are, their records, and how they differ from them."""
