"""Write the events of a run as JSON lines, one event a line, for clusterctl.

The events are ``playbook``, ``play``, ``task``, ``started``, ``result``, ``stats`` and ``end``. After a stop request
``stopped`` replaces ``stats`` and ``end``. clusterctl/ansible/events.py reads them and describes every field.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from ansible import constants as C  # noqa: N812 - Ansible's own name for it
from ansible import context
from ansible.plugins.callback import CallbackBase

from clusterctl.ansible import background, waiting
from clusterctl.ansible.preload import preload

DOCUMENTATION = """
    name: clusterctl_events
    type: aggregate
    short_description: Write a run's events as JSON lines
    description:
      - Appends one JSON object per event to the file named by the environment variable C(CLUSTERCTL_EVENTS).
        Without that variable it does nothing.
      - Stops the run before the next task when the file named by C(CLUSTERCTL_STOP) exists, when the process that
        started the run has ended, or when a task has failed on a host of the comma-separated list
        C(CLUSTERCTL_CRITICAL).
      - Never writes values of module arguments. Results of tasks with C(no_log) contain no text.
    requirements: [enabled by callbacks_enabled in ansible.cfg]
"""

# Largest sizes (characters or items). Text is cut because it comes from nodes, which are not trusted.
_MESSAGE, _TEXT, _NAME = 4096, 512, 256
_CHANGES, _VERSIONS, _NOTES = 200, 500, 20
_TOOL_LINES = 12
_CHANGE = ("kind", "name", "action", "what", "from", "to")  # clusterctl.ansible.events.Change

# C0 and C1 controls except tab and newline, and Unicode characters that hide text or change its direction.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")

# These actions lose the connection, wait for the node and have their own timeout.
_RECONNECTING = {"reboot", "wait_for_connection"}

_PREFIX = re.compile(r"^(?:(?:Task|Module) failed: )+")
_OUTPUTS = ("stderr", "module_stderr", "stdout", "module_stdout")
# The SSH client says so after a task with a terminal, such as `script`, whose own errors are then in stdout.
_CLOSED = re.compile(r"(?m)^Shared connection to \S+ closed\.\s*$")


def _clean(value: object, limit: int) -> str:
    """Remove control characters and cut the middle of a text that is longer than `limit` characters."""
    text = _CONTROL.sub("", str(value)).strip()
    if len(text) <= limit:
        return text
    head = limit // 4
    return f"{text[:head]} … {text[-(limit - head - 3) :]}"


def _line(value: object, limit: int = _NAME) -> str:
    return " ".join(_clean(value, limit).split())


class _TolerantStream:
    """A stream that ignores a broken pipe, which means that the process that started Ansible was killed.

    Such an error would end Ansible's thread that delivers results, and Ansible would wait for them without a limit.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(BrokenPipeError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._stream.flush()


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "clusterctl_events"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        path = os.environ.get("CLUSTERCTL_EVENTS")
        self._file = Path(path).open("a", encoding="utf-8") if path else None  # noqa: SIM115 - for the whole run
        self.disabled = self._file is None
        if not self.disabled:
            sys.stdout, sys.stderr = _TolerantStream(sys.stdout), _TolerantStream(sys.stderr)
        self._stop = os.environ.get("CLUSTERCTL_STOP")
        self._critical = set(os.environ.get("CLUSTERCTL_CRITICAL", "").split(","))
        self._parent = os.getppid()
        self._finish = False
        self._root = Path(C.CONFIG_FILE).resolve().parent if C.CONFIG_FILE else Path.cwd()
        self._play = ""
        self._began: dict[tuple[str, str], float] = {}
        self._waiting: dict[tuple[str, str], Any] = {}  # tasks whose calls wait, by host and their ids
        try:
            preload()
        except Exception as error:  # without this plugin the run could not be stopped; a task that needs it fails
            self._display.vvv(f"Not loaded before the first task: {error}")

    # --- callbacks of Ansible ---

    def v2_playbook_on_start(self, playbook: Any) -> None:
        plays = [_line(play.get_name()) for play in playbook.get_plays()]
        self._write("playbook", plays=plays, check=bool(context.CLIARGS.get("check")))

    def v2_playbook_on_play_start(self, play: Any) -> None:
        if not background.CALLS:  # else the first task stops the run, and the strategy waits for them
            self._stop_if_asked()
        self._play = _line(play.get_name())
        hosts = play.get_variable_manager().get_vars(play=play)["ansible_play_hosts_all"]
        pattern = play.hosts if isinstance(play.hosts, str) else ":".join(play.hosts)
        self._write(
            "play",
            name=self._play,
            pattern=_line(pattern),
            hosts=[str(host) for host in hosts],
            roles=list(dict.fromkeys(role.get_name() for role in play.get_roles())),
        )

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        self._stop_if_asked()
        self._write("task", play=self._play, **self._describe(task))

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        self.v2_playbook_on_task_start(task, False)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Write that the task starts on the host. Ansible calls this as soon as a fork is free for the host."""
        began = self._began[host.get_name(), task._uuid] = time.monotonic()
        if str(task.action).rpartition(".")[2] not in _RECONNECTING:
            self._write("started", host=host.get_name(), at=began)

    def v2_runner_on_ok(self, result: Any) -> None:
        self._result(result, "changed" if result.is_changed() else "ok")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        if ignore_errors:
            self.v2_runner_on_ok(result)
        else:
            self._result(result, "rescued" if _is_rescued(result._task) else "failed")

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._result(result, "skipped" if result._task.ignore_unreachable else "unreachable")

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._result(result, "skipped")

    def v2_playbook_on_stats(self, stats: Any) -> None:
        hosts = {}
        for host in sorted(stats.processed):
            summary = stats.summarize(host)
            hosts[host] = {
                "ok": summary["ok"],
                "changed": summary["changed"],
                "failed": summary["failures"],
                "unreachable": summary["unreachable"],
                "skipped": summary["skipped"],
            }
        self._write("stats", hosts=hosts)
        self._write("end")

    # --- writing of events ---

    def _stop_if_asked(self) -> None:
        """Stop the run between two tasks if a stop was requested.

        Ansible handles KeyboardInterrupt in the `finally` blocks of the strategy and the queue manager, then prints
        "User interrupted execution" and exits with 99. It turns any other exception into a warning.
        """
        if self._finish or os.getppid() != self._parent or (self._stop and Path(self._stop).exists()):
            self._write("stopped")
            raise KeyboardInterrupt

    def _describe(self, task: Any) -> dict[str, str]:
        name = str(task.get_name())
        if task._role:  # get_name() puts the role in front of the name; the event has a field for the role
            name = name.removeprefix(f"{task._role.get_name()} : ")
        return {"role": _line(_role(task)), "task": _line(name), "path": self._relative(task.get_path() or "")}

    def _relative(self, path: str) -> str:
        file, _, line = path.rpartition(":")
        try:
            return f"{Path(file).resolve().relative_to(self._root)}:{line}"
        except ValueError:
            return path

    def _result(self, result: Any, status: str) -> None:
        host, task = result._host.get_name(), result._task
        began = self._began.pop((host, task._uuid), None)
        data = result._result
        # No play has waited for a call in the background that had ended before.
        seconds = round(time.monotonic() - began, 3) if began is not None else _seconds(data)
        self._finish |= status in ("failed", "unreachable") and host in self._critical
        action = str(task.action).rpartition(".")[2]
        if action in background.ACTIONS and background.STATE in data:
            self._write_result(host, task, "runs", {}, seconds)
        elif action not in waiting.ACTIONS:
            self._write_result(host, task, status, data, seconds)
        elif "censored" in data and task.no_log is not True:  # the action hides a call that waits, and nothing else
            self._waiting[host, task._uuid] = task
            self._write_result(host, task, "waits", {}, seconds)
        else:
            self._write_applied(host, task, status, data, seconds, is_ended=began is None)

    def _write_applied(
        self, host: str, task: Any, status: str, data: dict[str, Any], seconds: float, *, is_ended: bool
    ) -> None:
        """Write the results of calls that have waited, each as that of its task, then that of the task itself.

        `is_ended`: they were made in the background, and had ended before a play waited for them.
        """
        applied = [one for one in _list(data.get("applied")) if isinstance(one, dict)]
        more = {"ended": sum(map(_seconds, applied or [data]))} if is_ended else {}
        others = [one for one in applied if (host, one.get("task")) in self._waiting]
        for one in others:
            ended = status if one.get("failed") else "changed" if one.get("changed") else "ok"
            self._write_result(host, self._waiting[host, one["task"]], ended, one, _seconds(one), waited=True)
        own = [one for one in applied if one not in others]
        if others and not own and status not in ("ok", "changed"):
            return  # the result of the call that failed says it
        if others:
            data = own[0] if own else {}
            status = status if data.get("failed") else "changed" if data.get("changed") else "ok"
        self._write_result(host, task, status, data, seconds, **more)

    def _write_result(
        self, host: str, task: Any, status: str, data: dict[str, Any], seconds: float, **more: object
    ) -> None:
        hidden = "censored" in data or bool(data.get("_ansible_no_log")) or task.no_log is True
        parts = [] if hidden else [data, *(item for item in data.get("results", ()) if isinstance(item, dict))]
        has_message = status in ("failed", "rescued", "unreachable")
        self._write(
            "result",
            host=host,
            **self._describe(task),
            status=status,
            message=_message(parts) if has_message else "",
            seconds=seconds,
            changes=_changes(parts),
            versions=_versions(parts),
            notes=_notes(parts),
            **more,
        )

    def _write(self, event: str, **fields: object) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps({"event": event, **fields}, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError:  # the process that reads the events was killed
            self._finish = True


def _role(task: Any) -> str:
    """Return the role of the play. For a role that another role includes this is the outer one."""
    role, item = None, task
    while item is not None:
        role = getattr(item, "_role", None) or role
        item = item._parent
    return str(role.get_name()) if role else ""


def _is_rescued(task: Any) -> bool:
    """Return whether a block around the task will rescue its failure, as Ansible's is_any_block_rescuing does."""
    inner, outer = task, task._parent
    while outer is not None:
        if getattr(outer, "rescue", None):
            handlers = {item._uuid for item in (*outer.rescue, *(outer.always or ()))}
            if inner._uuid not in handlers:
                return True
        inner, outer = outer, outer._parent
    return False


def _message(parts: list[dict[str, Any]]) -> str:
    """Return the error message of a result: `msg`, and the end of the output if `msg` does not contain it."""
    items = parts[1:]
    failed = [item for item in items if item.get("failed") or item.get("unreachable")]
    data = failed[0] if failed else (parts[0] if parts else {})
    message = _PREFIX.sub("", str(data.get("msg") or data.get("reason") or "").strip())
    outputs = (_CLOSED.sub("", str(data.get(name) or "")).strip() for name in _OUTPUTS)
    tail = "\n".join(next(filter(None, outputs), "").splitlines()[-_TOOL_LINES:])
    if tail and tail not in message:
        message = f"{message}\n{tail}"
    if len(failed) > 1:
        message += f"\n({len(failed)} of {len(items)} items failed; this is the first)"
    return _clean(message, _MESSAGE)


def _changes(parts: list[dict[str, Any]]) -> list[dict[str, str]]:
    found = [change for part in parts for change in _list(part.get("changes")) if isinstance(change, dict)]
    return [{key: _line(change.get(key, "")) for key in _CHANGE} for change in found[:_CHANGES]]


def _versions(parts: list[dict[str, Any]]) -> dict[str, str]:
    found = {str(k): v for part in parts if isinstance(part.get("versions"), dict) for k, v in part["versions"].items()}
    return {_line(name): _line(version) for name, version in list(found.items())[:_VERSIONS]}


def _notes(parts: list[dict[str, Any]]) -> list[str]:
    found = [note for part in parts for note in _list(part.get("notes")) if isinstance(note, str)]
    return [_line(note, _TEXT) for note in found[:_NOTES]]


def _seconds(entry: dict[str, Any]) -> float:
    value = entry.get("seconds")
    return round(float(value), 3) if isinstance(value, int | float) and 0 <= value < 1e6 else 0.0


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
