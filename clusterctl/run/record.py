"""What is kept of a run, and the page at its end."""

import contextlib
import json
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterctl.ansible.run_directory import RunDirectory
from clusterctl.run import planning
from clusterctl.run.context import Options, Site
from clusterctl.run.phases import Run
from clusterctl.ui import report
from clusterctl.util import files
from clusterctl.util.errors import ClusterctlError
from clusterctl.util.redaction import throughout
from clusterctl.workspace import secrets

_NO_STATUS_AFTER = ("verify", "backup")
_KEEPS_NOTHING = ("discover", "trust")  # verbs without a play


@dataclass(frozen=True)
class Closing:
    """What is shown of a run when its locks are given back."""

    summary: dict[str, Any]
    again: str
    """The command that resumes."""
    plan: planning.Plan | None


def write(run: Run, error: ClusterctlError | None) -> Closing:
    """Write the summary of a run that may have changed nodes, or has planned to; return what is to be shown."""
    options, verb = run.options, run.resume_with
    again = (replace(options, verb=verb, subverb="", flags=()) if verb else options).again()
    summary = {**_asked(run.site), **_came_of(run, error, again)}
    plan = planning.Plan.of(run.ledger, run.jobs) if options.planned and error is None else None
    if plan:
        summary |= {"exit_code": plan.exit_code, **plan.as_dict()}
    summary = throughout(summary | run.told, run.redact)
    with contextlib.suppress(OSError):  # a full disk is reported below, the run's outcome counts
        files.write_atomically(run.directory().summary, (json.dumps(summary, indent=2) + "\n").encode())
    return Closing(summary, again, plan)


def show(run: Run, error: ClusterctlError | None, closing: Closing) -> int:
    """Print the last page of a run, and its summary as JSON where that is asked for; return its exit code."""
    if closing.plan:
        closing.plan.show(run.screen)
        run.screen.say()
    with contextlib.suppress(OSError):  # nobody listens any more; the summary is on disk
        if run.options.json:
            print(json.dumps(closing.summary), flush=True)
        if not closing.plan:
            page(run, error, closing.again)
    return int(closing.summary["exit_code"])


def keep_refusal(run: Run, error: ClusterctlError, seconds: float) -> None:
    """Keep that a run ended before Ansible began: `logs` lists it like the others.

    Nothing of it is worth a second error: a disk that is full, secrets that are not there yet.
    """
    if run.options.verb in _KEEPS_NOTHING or run.lock < 0:  # another run has the directory
        return
    with contextlib.suppress(OSError, ClusterctlError):
        redact = secrets.redactor(run.site.inventory.directory, run.site.access.sudo_password).redact
        kept = RunDirectory.create(run.site.state, run.options.verb)
        problems = [str(problem) for problem in getattr(error, "problems", ())]
        summary = {**_asked(run.site), "exit_code": error.exit_code, "error": str(error), "problems": problems}
        summary |= {"seconds": round(seconds, 1), "log": None, **run.told}
        document = json.dumps(throughout(summary, redact), indent=2) + "\n"
        files.write_atomically(kept.summary, document.encode())


def _asked(site: Site) -> dict[str, Any]:
    """Return what tells one run from another by what it was asked for."""
    options = site.options
    return {
        "verb": options.verb,
        "cluster": site.inventory.cluster_name,
        "check": options.check,
        "limit": options.chosen,
        "planned": options.planned or None,
        "subverb": options.subverb or None,
        "nodes": list(options.nodes),
    }


def _came_of(run: Run, error: ClusterctlError | None, again: str) -> dict[str, Any]:
    return {
        "exit_code": error.exit_code if error else 0,
        "error": str(error) if error else None,
        "skipped": list(run.site.skipped),
        **run.ledger.summary(),
        "open": [
            {"what": what, "url": url, "login": login}
            for what, url, login in report.addresses(run.site.inventory, run.options.given)
        ],
        "log": str(run.directory().log.resolve()),
        "next": again if error else None,
    }


def near(path: Path) -> str:
    """Return a path as short as it can be typed from here.

    A plan has a copy of the cluster's directory, whose state is a link to the real one.
    """
    with contextlib.suppress(OSError, ValueError):
        path = path.resolve()
        return str(path.relative_to(Path.cwd()))
    return str(path)


def full(trouble: OSError, kept: RunDirectory) -> str:
    """Return the path that takes no more."""
    return near(Path(trouble.filename or kept.path))


def page(run: Run, error: ClusterctlError | None, again: str) -> None:
    """Print what stands under a run when it is over."""
    shown = report.Page(run.screen)
    if error is None:
        shown.done(run.ledger, run.site.inventory, run.options.verb, run.options.given)
        shown.field("Log", near(run.directory().log))
        if run.options.verb not in _NO_STATUS_AFTER:
            shown.field("Next", _status(run.options), "bold")
        return
    shown.failed(error, run.ledger)
    if not run.options.planned:
        _phase(run, shown)
    if run.trouble:
        told = f"{full(run.trouble, run.directory())}: {run.trouble.strerror}; the log is incomplete"
        shown.field("Trouble", told, "red")
    if type(error) is ClusterctlError:
        shown.tail(run.directory().log)
    shown.field("Log", near(run.directory().log))
    shown.field("Go on", again, "bold")


def _phase(run: Run, shown: report.Page) -> None:
    """Print in which phase a run ended, where phases were left out by it."""
    phases = run.told.get("phases", ())
    left = [phase["title"] for phase in phases if phase["result"] == "not begun"]
    if left:
        shown.field("Ended in", next(phase["title"] for phase in phases if phase["result"] == "failed"))
        shown.field("Not begun", "; ".join(left))


def _status(options: Options) -> str:
    return shlex.join(["clusterctl", "status", str(options.given)])
