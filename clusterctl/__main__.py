"""`python -m clusterctl`."""

from clusterctl.cli.main import main

main()
