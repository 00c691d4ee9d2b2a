"""The action of every module that has none of its own, in the place of Ansible's `normal`.

Ansible asks for it as `ansible.legacy.normal`, so that a project may have its own. A task cannot have `async` with it.
"""

from __future__ import annotations

from typing import Any

from clusterctl.ansible import light_module


class ActionModule(light_module.Light):
    """Call the module; one of clusterctl without Ansible's code."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        return {**result, **self._execute_module(task_vars=task_vars)}
