"""The parts of node_state: packages, files, units and kernel settings of a node, their records and differences."""
