"""`python -m clusterctl`."""

from clusterctl.cli import main

main()
