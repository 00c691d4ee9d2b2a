"""The summary of a run, and the page at its end."""

import contextlib
import json
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterctl.ansible.run_directory import RunDirectory
from clusterctl.run import planning
from clusterctl.run.context import BASE_OF_HEADS, Options, Site
from clusterctl.run.phases import Run
from clusterctl.ui import report
from clusterctl.util import files
from clusterctl.util.errors import ClusterctlError
from clusterctl.util.redaction import throughout
from clusterctl.workspace import secrets

_NO_STATUS_AFTER = ("verify", "backup")
_WITHOUT_RECORD = ("discover", "trust")  # verbs without a play


@dataclass(frozen=True)
class Closing:
    """What to print at the end of a run, after its locks are released."""

    summary: dict[str, Any]
    again: str
    """The command that resumes."""
    plan: planning.Plan | None


def write(run: Run, error: ClusterctlError | None) -> Closing:
    """Write the summary of a run or plan; return what to print."""
    options, verb = run.options, run.resume_with
    resumed = replace(options, verb=verb, subverb="", flags=()) if verb else options
    # bootstrap is for all hosts, and the verb's nodes may have left the inventory.
    again = (replace(resumed, nodes=(), limit=None) if verb == "bootstrap" else resumed).again()
    summary = {**_request(run.site), **_outcome(run, error, again)}
    plan = (
        planning.Plan.of(run.ledger, run.jobs, run.site.inventory.schedulers)
        if options.planned and error is None
        else None
    )
    if plan:
        summary |= {"exit_code": plan.exit_code, **plan.as_dict()}
    summary = throughout(summary | run.summary, run.redact)
    with contextlib.suppress(OSError):  # the page reports a full disk; the exit code is that of the run
        files.write_atomically(run.directory().summary, (json.dumps(summary, indent=2) + "\n").encode())
    return Closing(summary, again, plan)


def show(run: Run, error: ClusterctlError | None, closing: Closing) -> int:
    """Print the final page of a run, with --output json also its summary; return its exit code."""
    if closing.plan:
        closing.plan.show(run.screen)
        run.screen.say()
    with contextlib.suppress(OSError):  # the output may be closed; the summary is on disk
        if run.options.json:
            print(json.dumps(closing.summary), flush=True)
        if not closing.plan:
            page(run, error, closing.again)
    return int(closing.summary["exit_code"])


def keep_refusal(run: Run, error: ClusterctlError, seconds: float) -> None:
    """Write a summary for a run that ended before Ansible started, so that `logs` lists it.

    Ignores errors, such as a full disk or missing secrets: the run already ends with an error.
    """
    if run.options.verb in _WITHOUT_RECORD or run.lock < 0:  # without the lock, another run uses the directory
        return
    with contextlib.suppress(OSError, ClusterctlError):
        redact = secrets.redactor(run.site.inventory.directory, run.site.access.sudo_password).redact
        kept = RunDirectory.create(run.site.state, run.options.verb)
        problems = [str(problem) for problem in getattr(error, "problems", ())]
        summary = {**_request(run.site), "exit_code": error.exit_code, "error": str(error), "problems": problems}
        summary |= {"seconds": round(seconds, 1), "log": None, **run.summary}
        document = json.dumps(throughout(summary, redact), indent=2) + "\n"
        files.write_atomically(kept.summary, document.encode())


def _request(site: Site) -> dict[str, Any]:
    """Return the summary's fields about the command line."""
    options = site.options
    return {
        "verb": options.verb,
        "cluster": site.inventory.cluster_name,
        "check": options.check,
        "limit": options.requested_limit,
        "planned": options.planned or None,
        "subverb": options.subverb or None,
        "nodes": list(options.nodes),
    }


def _outcome(run: Run, error: ClusterctlError | None, again: str) -> dict[str, Any]:
    """Return the summary's fields about the result."""
    summary = run.ledger.summary()
    left_out = {"status": "unchanged", "ok": 0, "changed": 0, "changes": []}
    unchanged = {name: proof.at for name, proof in run.unchanged.items()}
    summary["hosts"] = dict.fromkeys(unchanged, left_out) | summary["hosts"]  # some were tested
    roles = {"base" if tag == BASE_OF_HEADS else tag for tag in run.roles or ()}
    of_bootstrap = {"unchanged": unchanged, "only_roles": None if run.roles is None else sorted(roles)}
    return {
        "exit_code": error.exit_code if error else 0,
        "error": str(error) if error else None,
        "skipped": list(run.site.skipped),
        **(of_bootstrap if "bootstrap" in (run.options.verb, run.options.planned) else {}),
        **summary,
        "open": [
            {"what": what, "url": url, "login": login}
            for what, url, login in report.addresses(run.site.inventory, run.options.given)
        ],
        "log": str(run.directory().log.resolve()),
        "next": again if error else None,
    }


def near(path: Path) -> str:
    """Return a path relative to the working directory if possible, with links resolved.

    In a plan, the path is in a copy of the cluster's directory, and the copy's state directory is a link.
    """
    with contextlib.suppress(OSError, ValueError):
        path = path.resolve()
        return str(path.relative_to(Path.cwd()))
    return str(path)


def full(trouble: OSError, kept: RunDirectory) -> str:
    """Return the path that could not be written."""
    return near(Path(trouble.filename or kept.path))


def page(run: Run, error: ClusterctlError | None, again: str) -> None:
    """Print the final page of a run."""
    shown = report.Page(run.screen)
    if error is None:
        left_out = len(run.unchanged.keys() - run.ledger.hosts.keys())
        shown.done(run.ledger, run.site.inventory, run.options.verb, run.options.given, left_out)
        kept = run.directory()
        # A run that leaves out all nodes has no log.
        shown.field(*(("Log", near(kept.log)) if kept.log.exists() else ("Summary", near(kept.summary))))
        if run.options.verb not in _NO_STATUS_AFTER:
            shown.field("Next", _status(run.options), "bold")
        return
    shown.failed(error, run.ledger)
    if not run.options.planned:
        _phase(run, shown)
    if run.trouble:
        message = f"{full(run.trouble, run.directory())}: {run.trouble.strerror}; the log is incomplete"
        shown.field("Warning", message, "red")
    if type(error) is ClusterctlError:
        shown.tail(run.directory().log)
    shown.field("Log", near(run.directory().log))
    shown.field("Resume", again, "bold")


def _phase(run: Run, shown: report.Page) -> None:
    """Print the phase that failed and the phases that did not start, if there are any."""
    phases = run.summary.get("phases", ())
    pending = [phase["title"] for phase in phases if phase["result"] == "not begun"]
    if pending:
        shown.field("Ended in", next(phase["title"] for phase in phases if phase["result"] == "failed"))
        shown.field("Not started", "; ".join(pending))


def _status(options: Options) -> str:
    return shlex.join(["clusterctl", "status", str(options.given)])
