"""The controller's part of `kubernetes_objects`: render the role's templates, and call the module with the objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail, AnsibleError

from clusterctl.ansible import light_module, waiting

Data = dict[str, Any]

HEADER = "Applied by clusterctl; a change made here is undone by its next run."


def documents(name: str, text: str) -> list[Data]:
    """Return the objects in YAML documents; items of a List one by one. Raises AnsibleActionFail for other content."""
    try:
        found = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise AnsibleActionFail(f"kubernetes_objects: {name} is not YAML: {error}") from None
    objects: list[Data] = []
    for document in found:
        if not isinstance(document, dict):
            raise AnsibleActionFail(f"kubernetes_objects: {name}: a document is not a mapping")
        objects += document.get("items", []) if document.get("kind") == "List" else [document]
    return objects


class ActionModule(light_module.Light):
    """The arguments are documented in plugins/modules/kubernetes_objects.py."""

    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: Data | None = None) -> Data:
        """Let the call wait, or make it, after all that wait. Rendered text is data and is not templated again."""
        result: Data = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        arguments = dict(self._task.args)
        if self._task._role:
            role = str(self._task._role.get_name()).strip().rsplit("/", 1)[-1]
            arguments["part"] = arguments.get("part") or role
        objects = list(arguments.get("objects") or [])
        for name in arguments.get("templates") or []:
            objects += documents(name, self._text(name, task_vars))
        for name in arguments.get("files") or []:
            objects += documents(name, Path(str(self._needle("files", name))).read_text(encoding="utf-8"))
        state, wait = arguments.get("state") or "present", int(arguments.get("wait", 300))
        if state not in ("present", "absent", "flush"):
            raise AnsibleActionFail(f"kubernetes_objects: state is {state!r}, expected present, absent or flush")
        given = {"part": arguments.get("part"), "objects": objects, "wait": wait, "state": state}
        given["now"] = bool(arguments.get("now"))
        return {**result, **waiting.made(self, None if state == "flush" else given, task_vars, once=True)}

    def _needle(self, folder: str, name: str) -> str:
        try:
            return str(self._find_needle(folder, name))
        except AnsibleError as error:
            raise AnsibleActionFail(f"kubernetes_objects: {name}: {error}") from error

    def _text(self, name: str, task_vars: Data) -> str:
        """Return the text that a template gives."""
        text = Path(self._needle("templates", name)).read_text(encoding="utf-8")
        try:
            return str(self.rendered(text, HEADER, task_vars))
        except AnsibleError as error:
            raise AnsibleActionFail(f"kubernetes_objects: {name}: {error}") from error
