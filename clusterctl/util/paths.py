"""Find the Ansible content: inside the wheel, or beside the package in a checkout."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def content() -> Path:
    """Return the directory that holds ansible.cfg, playbooks/ and roles/."""
    wheel = _PACKAGE / "content"
    return wheel if wheel.is_dir() else _PACKAGE.parent
