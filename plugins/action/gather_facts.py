"""In place of Ansible's own: read what the roles need, by system_facts, instead of all that Ansible can find out."""

from __future__ import annotations

from typing import Any

from clusterctl.ansible import light_module

Data = dict[str, Any]


class ActionModule(light_module.Light):
    """It has no arguments."""

    _supports_check_mode = True
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: Data | None = None) -> Data:
        """Call the module."""
        result: Data = super().run(tmp, task_vars)
        return {**result, **self._execute_module(module_name="system_facts", module_args={}, task_vars=task_vars)}
