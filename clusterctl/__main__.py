"""`python -m clusterctl`."""

from clusterctl.cli.app import main

main()
