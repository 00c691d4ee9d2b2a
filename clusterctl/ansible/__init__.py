"""Start Ansible, read its events, and decide the result of a run."""
