#!/usr/bin/python3 -IS
"""Let Slurm's associations follow a directory: members of its groups get one, and people who left lose it.

A timer starts this program on Slurm's head. It asks the directory by SSSD alone, which answers from its cache while no
server responds. It changes only associations that it has made itself, which its record lists. It prints what it
changes, and on standard error what it does not do, and why. The record also has that, for clusterctl.

Two heads have one record, in the directory that they share. Only the head in control changes Slurm; the other one
copies the record, for clusterctl and for the case that it becomes the only head.

A person has left if the directory no longer lists them in the group, if it or the inventory refuses them, or if the
inventory no longer lists the group. They can submit no more jobs, and their jobs are cancelled, because Slurm ends no
association with jobs. If more people seem to have left than is likely, no association ends, unless an administrator
accepts that.

usage: slurm-directory [--accept-departures]
"""

import fcntl
import json
import os
import re
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # uninstalling has to leave the directory empty
sys.path.insert(0, "/usr/local/lib/clusterctl")
from directory_rules import collisions, departures, is_unlikely, unlikely_groups, wanted_accounts  # noqa: E402

SETTINGS = "/etc/clusterctl/slurm-directory.json"
OWN = "/var/lib/clusterctl/slurm-directory.json"


def shared_directory():
    """Return the directory that two heads share, empty if this head shares none."""
    try:
        with open("/etc/slurm/shared-state") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


SHARED = os.path.join(shared_directory(), "clusterctl") if shared_directory() else ""
RECORD = os.path.join(SHARED, "slurm-directory.json") if SHARED else OWN
LOCK = os.path.join(SHARED, "slurm-directory.lock") if SHARED else "/run/clusterctl-directory.lock"
IN_CONTROL = "/usr/local/sbin/slurm-in-control"
ADMISSIONS = "/usr/local/sbin/directory-admissions"
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
SECONDS = 60  # for each command
ENDING = 60  # seconds in which cancelled jobs have to end
NAME = r"[a-z_][a-z0-9_.-]{0,31}"
LIMIT = 300  # seconds after which no further person is changed, and for which a second run waits
MANY = 200  # people of one question
DAY = 86400
ACCEPT = ". If they have: slurm-directory --accept-departures"


class FollowError(Exception):
    """Slurm cannot be changed; the text says why."""


def output(*argv):
    """Return the exit status and the output of a command, None as status if it does not end in time."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            errors="replace",
            env=ENVIRONMENT,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    return done.returncode, done.stdout


def members_of(group):
    """Return the members of a group of the directory, None if it is not known. Raises FollowError.

    One member with an odd name makes getent print nothing, with exit status 0.
    """
    status, text = output("getent", "-s", "sss", "group", "--", group)
    fields = text.strip().split(":")
    if status == 0 and len(fields) != 4:
        raise FollowError("the directory's group %s is not readable, perhaps because of a member's name" % group)
    return [name for name in fields[3].split(",") if name] if status == 0 else None


def people(keys):
    """Return name, UID and GID of people of the directory with these names or UIDs."""
    found = []
    for start in range(0, len(keys), MANY):
        text = output("getent", "-s", "sss", "passwd", "--", *keys[start : start + MANY])[1]
        rows = [line.split(":") for line in text.splitlines()]
        found += [(row[0], int(row[2]), int(row[3])) for row in rows if len(row) == 7 and (row[2] + row[3]).isdigit()]
    return found


def admissions(names):
    """Return whether each person can log in, None if that is not known in time."""
    found = dict.fromkeys(names)
    with subprocess.Popen(
        [ADMISSIONS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True, env=ENVIRONMENT
    ) as child:
        try:
            text = child.communicate("\n".join(names), SECONDS * 2)[0]
        except subprocess.TimeoutExpired:
            child.kill()
            text = child.communicate()[0]
    rows = [line.split() for line in text.splitlines()]
    return {**found, **{row[0]: {"yes": True, "no": False}.get(row[1]) for row in rows if len(row) == 2}}


def rows_of(path, fields):
    """Return the rows of the node's own passwd or group."""
    with open(path, encoding="utf-8", errors="replace") as file:
        rows = [line.rstrip("\n").split(":") for line in file]
    return [row for row in rows if len(row) == fields and row[2].isdigit()]


def sacctmgr(*words):
    """Return the output of sacctmgr. Raises FollowError."""
    status, text = output("sacctmgr", "--immediate", "--noheader", "--parsable2", *words)
    if status != 0:
        raise FollowError("sacctmgr %s: %s" % (" ".join(words), "; ".join(text.split("\n")[-5:]).strip()))
    return text


def associations(cluster):
    """Return the pairs of user and account in Slurm, with the empty user for accounts. Raises FollowError."""
    text = sacctmgr("show", "assoc", "cluster=" + cluster, "format=user,account")
    return {tuple(line.split("|")) for line in text.splitlines()}


def jobs_of(name, uid):
    """Return the jobs of a user with this name and UID. Raises FollowError.

    For a UID that the directory no longer has, squeue prints the UID as name.
    """
    status, text = output("squeue", "--all", "--noheader", "--format=%A %U %u")
    if status != 0:
        raise FollowError("squeue: " + text.strip())
    rows = [line.split() for line in text.splitlines()]
    return sorted({row[0] for row in rows if len(row) == 3 and row[1] == str(uid) and row[2] in (name, str(uid))})


def cancel_jobs(name, uid):
    """Cancel the jobs of a user and wait for their end. Raises FollowError."""
    jobs = jobs_of(name, uid)
    if jobs:
        output("scancel", *jobs)
        print("%s: jobs cancelled: %s" % (name, " ".join(jobs)), flush=True)
    deadline = time.monotonic() + ENDING
    while jobs and time.monotonic() < deadline:
        time.sleep(0.5)
        jobs = jobs_of(name, uid)
    if jobs:
        raise FollowError("%s: jobs have not ended yet: %s" % (name, " ".join(jobs)))


def set_default(cluster, name, account):
    """Make an account a person's default. Raises FollowError."""
    sacctmgr("modify", "user", "where", "name=" + name, "cluster=" + cluster, "set", "defaultaccount=" + account)


def limit_submission(cluster, name, account, jobs):
    """Set how many jobs a person can have submitted, -1 for no limit. Raises FollowError."""
    where = ("where", "name=" + name, "account=" + account, "cluster=" + cluster)
    sacctmgr("modify", "user", *where, "set", "maxsubmitjobs=%d" % jobs)


def end(cluster, name, account, present, default=None):
    """End a person's association, or delete a user who has no other one. Raises FollowError.

    If it is with their default account, `default` replaces that, or else one of their other accounts.
    """
    others = sorted({one for user, one in present if user == name} - {account})
    text = sacctmgr("show", "assoc", "user=" + name, "format=cluster")
    if not others and set(text.split()) <= {cluster}:
        sacctmgr("delete", "user", "name=" + name)
        return
    if others and sacctmgr("show", "user", "name=" + name, "format=defaultaccount").strip() == account:
        # Slurm does not end the association with a user's default account.
        set_default(cluster, name, default or others[0])
    sacctmgr("delete", "user", "where", "name=" + name, "account=" + account, "cluster=" + cluster)


def is_standby(settings):
    """Return whether another head is in control, or none of two."""
    return settings["head"] != "" and output(IN_CONTROL, settings["head"])[0] != 0


def read(path):
    """Return the record in a file, empty if there is none."""
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        return json.load(file)


def save(path, record):
    """Write a record as a whole, readable for root alone."""
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(record, file, indent=1, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


def keep(record, changes=True):
    """Write the record if it changes, and if it is shared, the copy of this head."""
    if changes:
        save(RECORD, record)
    if RECORD != OWN:
        save(OWN, dict(record, shared=RECORD))


def load():
    """Return the record, with what only this head has, and whether there is any.

    It has more if it followed alone, or with another shared directory. A shared record that is older was left from
    before that. Of one that is lost, the head has the copy.
    """
    record = dict({"ended": [], "online": True, "people": {}, "problems": []}, **read(RECORD))
    own = read(OWN) if RECORD != OWN else {}
    is_there = os.path.exists(RECORD)
    has_more = bool(own) and (own.get("shared") != RECORD or not is_there)
    if has_more and (not is_there or os.stat(OWN).st_mtime_ns > os.stat(RECORD).st_mtime_ns):
        record.update(own)
    elif has_more:
        record["people"] = dict(own["people"], **record["people"])
        record["ended"] = record["ended"] + own.get("ended", [])
    record.pop("shared", None)
    return record, has_more


class Follower:
    """Changes Slurm, and writes the record after each change."""

    def __init__(self, settings, accept):
        self.settings, self.accept = settings, accept
        self.accounts = [(one["key"], one["value"].lower()) for one in settings["accounts"]]
        self.deadline, self.online, self.problems = time.monotonic() + LIMIT, False, []
        record, _ = load()
        self.known = record["people"]
        # When people left; accepted departures no longer count.
        self.ended = [] if accept else [at for at in record["ended"] if 0 <= time.time() - at < DAY]

    def write(self):
        """Write the record."""
        keep({"ended": self.ended, "online": self.online, "people": self.known, "problems": self.problems})

    def follow(self):
        """Converge, and report what is not done."""
        # First, because it needs no answer of the directory.
        self.change({}, {}, [name for name in sorted(self.known) if name in self.settings["departed"]])
        members = {group: self.members(group) for group, _ in self.accounts}
        names = sorted({name for some in members.values() for name in some or ()} | set(self.known))
        entries = people(names)
        found = {name: uid for name, uid, _ in entries}
        admitted = admissions(names)
        self.compare(entries, admitted)
        # After the questions, of which the first without an answer changes that.
        self.online = output("sssctl", "domain-status", "directory", "--online")[1].strip() == "Online status: Online"
        self.problems += [] if self.online else ["no server of the directory responds"]
        wanted = wanted_accounts(self.accounts, members, admitted)
        wanted = {name: wanted[name] for name in wanted if name in found}
        refused, left = departures(self.known, self.accounts, members, admitted, self.settings["departed"])
        if not self.online:  # what SSSD does not have in its cache looks as if it was gone
            wanted, left = {}, []
        elif is_unlikely(left, self.known, wanted, len(self.ended)) and not self.accept:
            what = "%d of %d people seem to have left the directory, so no association ends: %s"
            self.problems.append(what % (len(left), len(self.known), ", ".join(left[:8])) + ACCEPT)
            left = []
        elif not self.accept:
            for group, gone in unlikely_groups(left, self.known, wanted).items():
                what = "%d people seem to have left the group %s, so their associations do not end: %s"
                self.problems.append(what % (len(gone), group, ", ".join(gone[:8])) + ACCEPT)
                left = [name for name in left if name not in gone]
        self.change(wanted, found, refused + left, left)

    def compare(self, entries, admitted):
        """Report people with IDs of others, or with another UID than before, and change who can log in."""
        local = {row[0]: int(row[2]) for row in rows_of("/etc/passwd", 7)}
        local.update(self.settings["local"])
        groups = {int(row[2]): row[0] for row in rows_of("/etc/group", 4)}
        others = people([word for name, uid in sorted(local.items()) for word in (name, str(uid))])
        admitted.update(dict.fromkeys(local.keys() & admitted.keys()))  # the inventory's associations, not ours
        for name, (can_log_in, why) in collisions(local, groups, entries + others, self.known).items():
            self.problems.append(why)
            admitted[name] = can_log_in
        for name, uid, _ in entries:
            if name in self.known and self.known[name]["uid"] != uid:
                why = (
                    "%s: UID %d in the directory, but %d when the association was made: nothing of UID %d will be ended"
                )
                self.problems.append(why % (name, uid, self.known[name]["uid"], uid))

    def members(self, group):
        """Return the members of a group of the directory, without names that are none in Slurm."""
        try:
            found = members_of(group)
        except FollowError as error:
            self.problems.append(str(error))
            return [name for name in sorted(self.known) if self.known[name]["group"] == group]
        if found is None:
            self.problems.append("the directory has no group %s" % group)
            return None
        odd = [name for name in found if not re.match(NAME + "$", name)]
        if odd:
            self.problems.append("%s: cannot be users of Slurm: %s" % (group, ", ".join(map(ascii, odd[:8]))))
        return [name for name in found if name not in odd]

    def change(self, wanted, found, leaving, counted=()):
        """End and add associations; one that Slurm refuses is tried again the next time."""
        cluster = self.settings["cluster"]
        try:
            present = associations(cluster) if wanted or leaving else set()
        except FollowError:
            # slurmctld works without accounting, whose host can be a head that is down. The associations end later.
            for name in leaving:
                self.attempt(cancel_jobs, name, self.known[name]["uid"])
            raise
        for name in leaving:
            self.attempt(self.leave, name, present, name in counted)
        for account in sorted({account for _, account in wanted.values()} - {one for _, one in present}):
            self.problems.append("Slurm has no account %s: list it in slurm_head_accounts" % account)
        for name, (group, account) in sorted(wanted.items()):
            one = self.known.get(name)
            is_as_wanted = one and (one["account"], one["group"], one.get("closed")) == (account, group, None)
            if ("", account) in present and not ((name, account) in present and (is_as_wanted or not one)):
                self.attempt(self.admit, name, group, account, found[name], present)

    def attempt(self, function, *arguments):
        """Change one person, and keep the record."""
        if time.monotonic() > self.deadline:
            late = "more than %d s have passed: the next run continues" % LIMIT
            self.problems += [late] if late not in self.problems else []
            return
        try:
            function(*arguments)
        except FollowError as error:
            self.problems.append(str(error))
        self.write()

    def leave(self, name, present, is_counted):
        """End what the record has of a person."""
        one = self.known[name]
        has_one = (name, one["account"]) in present
        if has_one:  # a job could submit another one while it is cancelled
            one["closed"] = True
            self.write()
            limit_submission(self.settings["cluster"], name, one["account"], 0)
        cancel_jobs(name, one["uid"])
        if has_one:
            end(self.settings["cluster"], name, one["account"], present)
            print("%s: association with %s ended" % (name, one["account"]), flush=True)
        del self.known[name]
        self.ended += [int(time.time())] if is_counted and not self.accept else []

    def admit(self, name, group, account, uid, present):
        """Give a person the association with an account, and end the recorded one with another account."""
        cluster, before = self.settings["cluster"], self.known.get(name)
        is_new = all(user != name for user, _ in present)
        if (name, account) not in present:
            sacctmgr("add", "user", "name=" + name, "account=" + account, "cluster=" + cluster)
            print("%s: associated with %s" % (name, account), flush=True)
            self.known.setdefault(name, {"account": account, "group": group, "uid": uid})
            present.add((name, account))
            if is_new:
                set_default(cluster, name, account)
        if before and before["account"] != account and (name, before["account"]) in present:
            end(cluster, name, before["account"], present, account)
            print("%s: association with %s ended" % (name, before["account"]), flush=True)
        elif before and before.get("closed"):
            limit_submission(cluster, name, account, -1)
        if before:
            self.known[name] = {"account": account, "group": group, "uid": before["uid"]}


def main(arguments):
    """Follow the directory; return 0 also if something was not done, for which no verb has to fail."""
    if arguments not in ([], ["--accept-departures"]):
        print(__doc__, file=sys.stderr)
        return 2
    with open(SETTINGS) as file:
        settings = json.load(file)
    if SHARED and not os.path.isdir(SHARED):
        print("%s does not exist: mount the directory that the heads share" % SHARED, file=sys.stderr)
        return 1 if arguments else 0
    with open(LOCK, "w") as lock:
        for _ in range(2 * LIMIT):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.5)
        else:
            print("another slurm-directory has been running for %d s" % LIMIT, file=sys.stderr)
            return 1 if arguments else 0
        if is_standby(settings):
            keep(*load())
            if arguments:
                print("this head is not in control: run the command on the other one", file=sys.stderr)
            return 1 if arguments else 0
        follower = Follower(settings, bool(arguments))
        try:
            follower.follow()
        except FollowError as error:
            follower.problems.append(str(error))
        follower.write()
    for problem in follower.problems:
        print(problem, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
