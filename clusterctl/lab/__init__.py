"""A cluster in containers on one machine: the demo, the test bed and the bench.

Nodes are systemd containers (podman) with SSH, a private network and simulated GPUs. The GPUs are simulated at the
driver's interface (`nvml/`). Everything else on a node is real.
"""
