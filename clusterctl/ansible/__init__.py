"""Start Ansible, read its events, and decide what a run came to."""
