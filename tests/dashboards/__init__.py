"""The dashboards of role grafana, in Python: `python -m tests.dashboards` writes their JSON into the role."""
