"""`report quota`: each account's share, use and limits, what its jobs wait for, and what was made by hand in Slurm."""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, groupby
from operator import itemgetter

from clusterctl.commands import quota_page
from clusterctl.commands.quota_report import Quota, Row, Wait
from clusterctl.inventory.model import Inventory
from clusterctl.inventory.schedulers import SLURM
from clusterctl.nodes import people
from clusterctl.nodes.route import Access
from clusterctl.run import context
from clusterctl.run.context import Options
from clusterctl.slurm import by_hand, quota
from clusterctl.slurm.quota import ROOT, Association, Job, Limit, QuotaReader, State
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import InputError, Problem
from clusterctl.util.redaction import Redactor, throughout
from clusterctl.util.text import plural

_GPUS, _GPU_MINUTES = "GrpTRES:gres/gpu", "GrpTRESMins:gres/gpu"
_MOST_LIMITS = 3  # in the meaning of a reason
_ALONE = "kubectl describe resourcequota --all-namespaces"


def quota_command(options: Options, output: str, users: bool) -> int:
    """Print the quotas as text, csv or json. Raises InputError and HeadFailed."""
    site = context.load(options)
    if SLURM not in site.inventory.schedulers:
        message = "is for Slurm; the inventory has only Kubernetes, whose quotas are objects of a namespace"
        raise InputError([Problem(None, "report quota", message, _ALONE)])
    site = context.authorise(site)
    screen = Screen(sys.stdout if output == "text" else sys.stderr)
    with screen.working("Reading Slurm's accounts and jobs"):
        read = collect(site.inventory, site.access, users)
    found: Quota = throughout(read, Redactor([site.access.sudo_password or ""]).redact)
    if output == "text":
        quota_page.show(screen, found)
    else:
        print(json.dumps(found.as_dict(), indent=2) + "\n" if output == "json" else quota_page.table(found), end="")
    return 0


def collect(inventory: Inventory, access: Access, users: bool) -> Quota:
    """Read the quotas on the head, with the users of each account if wanted. Raises HeadFailed."""
    heads = inventory.in_group(SLURM.head)
    with QuotaReader.connect_any(heads, access) as reader:
        state = reader.state()
        associations = reader.sacctmgr(*by_hand.associations_command(inventory.cluster_name))
        qos = reader.sacctmgr(*by_hand.qos_command())
        known = people.read(heads[0], reader)
    of_directory = (by_hand.Entry("user", name, person.account) for name, person in known.people.items())
    wanted = chain(by_hand.declared(heads[0].variables), of_directory)
    differences = by_hand.compare(wanted, by_hand.parse(associations, qos))
    notes = [*known.problems]
    if state.unreadable:
        notes.append(f"{plural(state.unreadable, 'line')} of scontrol or squeue could not be read")
    return Quota(inventory.cluster_name, tuple(Tree(state).rows(users)), differences, tuple(notes))


class Tree:
    """Slurm's accounts with their users and jobs."""

    def __init__(self, state: State) -> None:
        self.accounts: dict[str, Association] = {}
        self.users: dict[str, list[Association]] = defaultdict(list)
        for one in state.associations:
            if one.user:
                self.users[one.account].append(one)
            else:
                self.accounts.setdefault(one.account, one)
        self.children: dict[str, list[str]] = defaultdict(list)
        for name, one in sorted(self.accounts.items()):
            if name != ROOT:
                self.children[one.parent if one.parent in self.accounts else ROOT].append(name)
        self.whole = self.accounts[ROOT].usage if ROOT in self.accounts else 0.0
        self.jobs: dict[str, list[tuple[Job, int]]] = defaultdict(list)
        """The jobs of an account's own users, with their number."""
        self.counts: Counter[tuple[str, bool]] = Counter()
        """The number of jobs of an account and those below it that run, or do not."""
        for job, count in state.jobs.items():
            self.jobs[job.account].append((job, count))
            for name in {ROOT, *(one.account for one in self._path(job.account))}:
                self.counts[name, job.is_running] += count

    def rows(self, users: bool) -> Iterator[Row]:
        """Yield the accounts, each before those below it; with `users`, also their users."""
        for name, depth in self._below(ROOT, 0):
            if name in self.accounts:
                running, waiting = (self.counts[name, is_running] for is_running in (True, False))
                row = self._row(self.accounts[name], depth, self.jobs[name])
                yield replace(row, running=running, waiting=waiting)
            for one in sorted(self.users[name], key=lambda one: (one.user, one.partition)) if users else ():
                own = [(job, count) for job, count in self.jobs[name] if job.user == one.user and not one.partition]
                yield self._row(one, depth + 1, own)

    def _below(self, name: str, depth: int) -> Iterator[tuple[str, int]]:
        yield name, depth
        for child in self.children.pop(name, ()):
            yield from self._below(child, depth + 1)

    def _path(self, name: str) -> Iterator[Association]:
        """Yield an account and those above it."""
        seen: set[str] = set()
        while name in self.accounts and name not in seen:
            seen.add(name)
            yield self.accounts[name]
            name = self.accounts[name].parent

    def _row(self, one: Association, depth: int, jobs: list[tuple[Job, int]]) -> Row:
        gpus, minutes = (one.limits.get(name, Limit(None)) for name in (_GPUS, _GPU_MINUTES))
        share = one.shares / one.level_shares if one.shares is not None and one.level_shares else None
        is_root = one.account == ROOT and not one.user
        return Row(
            account=one.account,
            user=f"{one.user} ({one.partition})" if one.partition else one.user,
            parent=one.account if one.user else one.parent,
            depth=depth,
            shares=None if is_root else one.shares,
            share=None if is_root else share,
            use=one.usage / self.whole if self.whole else None,
            level_fs=None if is_root else self._level_fs(one, share),
            gpus=gpus.used or 0,
            gpu_limit=gpus.most,
            gpu_minutes=minutes.used or 0,
            gpu_minutes_limit=minutes.most,
            running=sum(count for job, count in jobs if job.is_running),
            waiting=sum(count for job, count in jobs if not job.is_running),
            waits=tuple(self._waits(jobs)),
        )

    def _level_fs(self, one: Association, share: float | None) -> float | None:
        """Return the share, divided by the part of the use of the account above.

        Source: _calc_assoc_fs in src/plugins/priority/multifactor/fair_tree.c of Slurm. An account without a share of
        its own (Fairshare=parent) passes its children on to the next account above.
        """
        if not share or not one.usage:
            return 0.0 if share == 0 else None
        above = self._path(one.account if one.user else one.parent)
        whole = next((each.usage for each in above if each.shares is not None), 0.0)
        return share * whole / one.usage

    def _waits(self, jobs: list[tuple[Job, int]]) -> Iterator[Wait]:
        """Yield the reasons of waiting jobs, the most frequent first."""
        found: Counter[tuple[str, str]] = Counter()
        for job, count in jobs:
            if not job.is_running:
                found[job.reason, self._meaning(job)] += count
        for (reason, meaning), count in sorted(found.items(), key=lambda item: (-item[1], item[0])):
            yield Wait(reason, count, meaning)

    def _meaning(self, job: Job) -> str:
        """Return the limits that a reason can be about, or its explanation."""
        user = [one for one in self.users[job.account] if one.user == job.user and not one.partition]
        path = [*user, *self._path(job.account)]
        of_path = [(one.user or one.account, quota.limits_of(job.reason, one)) for one in path]
        found: dict[str, list[str]] = {}
        for name in dict.fromkeys(name for _, limits in of_path for name in limits):
            held = [(owner, limits[name]) for owner, limits in of_path if name in limits]
            if not quota.is_of_group(name):  # inherited from the last one with the same value
                _, same = next(groupby(held, key=itemgetter(1)))
                held = [*same][-1:]
            for owner, most in held:
                found.setdefault(owner, []).append(quota.described(name, most))
        texts = [f"{owner}: {', '.join(limits)}" for owner, limits in found.items()][:_MOST_LIMITS]
        return f"limit of {'; '.join(texts)}" if texts else quota.explained(job)
