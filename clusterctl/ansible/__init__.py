"""Start Ansible, follow its events, and judge what became of a run."""
