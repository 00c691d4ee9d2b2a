#!/usr/bin/python3 -IS
"""Let Slurm's associations follow a directory: members of its groups get one, and people who left lose it.

A timer starts this program on Slurm's head. It asks the directory by SSSD alone, which answers from its cache while no
server responds. It changes only associations that it has made itself, which its record lists. It prints what it
changes, and on standard error what it does not do, and why. The record also has that, for clusterctl.

A person has left if the directory no longer lists them in the group, if it or the inventory refuses them, or if the
inventory no longer lists the group. Their jobs are cancelled first, because Slurm ends no association with jobs. If
more people seem to have left than is likely, no association ends, unless an administrator accepts that.

usage: slurm-directory [--accept-departures]
"""

import ctypes
import fcntl
import json
import os
import re
import subprocess
import sys
import time

SETTINGS = "/etc/clusterctl/slurm-directory.json"
RECORD = "/var/lib/clusterctl/slurm-directory.json"
LOCK = "/run/clusterctl-directory.lock"
SERVICE = b"clusterctl-directory"
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
SECONDS = 60  # for each command
ENDING = 60  # seconds in which cancelled jobs have to end
NAME = r"[a-z_][a-z0-9_.-]{0,31}"
MANY = 200  # people of one command
LIKELY, PART = 2, 4  # so many departures at once, or this part of all people, are likely
ACCEPT = ". If they have: slurm-directory --accept-departures"
SUCCESS, REFUSED = 0, (6, 7, 10, 13)  # PAM_PERM_DENIED, _AUTH_ERR, _USER_UNKNOWN, _ACCT_EXPIRED: security/_pam_types.h


class FollowError(Exception):
    """Slurm cannot be changed; the text says why."""


def wanted_accounts(accounts, members, admitted):
    """Return by name the group and the account of people who are to have an association.

    `accounts` are pairs of group and account; of a person's groups the first counts. `members` has the people of each
    group, None if it is not known; `admitted` whether a person can log in, None if that is not known.
    """
    found = {}
    for group, account in accounts:
        for name in members[group] or ():
            if admitted[name] is True:
                found.setdefault(name, (group, account))
    return found


def departures(known, accounts, members, admitted, departed):
    """Return the recorded people whom the inventory refuses, and those who are no longer in the directory.

    A person whose group is not known, or of whom it is not known whether they can log in, has not left.
    """
    groups = [group for group, _ in accounts]
    refused = [name for name in known if name in departed or known[name]["group"] not in groups]
    wanted = wanted_accounts(accounts, members, admitted)
    is_known = {name: members.get(one["group"]) is not None for name, one in known.items()}
    left = [
        name
        for name in known
        if name not in wanted and name not in refused and is_known[name] and admitted.get(name, False) is not None
    ]
    refused = [name for name in refused if name in departed or name not in wanted]
    return sorted(refused), sorted(left)


def is_unlikely(left, known, wanted):
    """Return whether an answer of the directory is rather a fault: no person remains, or many have left at once."""
    return bool(left) and (not wanted or len(left) > max(LIKELY, len(known) // PART))


def unlikely_groups(left, known, wanted):
    """Return by group the departures that are rather a fault, such as a group whose members the directory now hides."""
    found = {}
    for group in sorted({known[name]["group"] for name in left}):
        recorded = [name for name, one in known.items() if one["group"] == group]
        gone = [name for name in left if known[name]["group"] == group]
        is_empty = all(one != group for one, _ in wanted.values())
        if len(gone) > max(LIKELY, len(recorded) // PART) or (is_empty and len(recorded) > LIKELY):
            found[group] = gone
    return found


def collisions(local, entries):
    """Return what accounts of the inventory, by name their UIDs, have in common with people of the directory.

    `entries` are pairs of name and UID.
    """
    owner = {uid: name for name, uid in local.items()}
    found = []
    for name, uid in entries:
        if name in local:
            found.append("%s is an account of the inventory and a person of the directory (UID %d)" % (name, uid))
        elif uid in owner:
            found.append("UID %d is that of %s in the inventory and of %s in the directory" % (uid, owner[uid], name))
    return sorted(set(found))


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


def is_online():
    """Return whether SSSD reaches a server."""
    return output("sssctl", "domain-status", "directory", "--online")[1].strip() == "Online status: Online"


def members_of(group):
    """Return the members of a group of the directory, None if it is not known."""
    status, text = output("getent", "-s", "sss", "group", "--", group)
    fields = text.strip().split(":")
    return [name for name in fields[3].split(",") if name] if status == 0 and len(fields) == 4 else None


def people(keys):
    """Return pairs of name and UID of people of the directory with these names or UIDs."""
    found = []
    for start in range(0, len(keys), MANY):
        text = output("getent", "-s", "sss", "passwd", "--", *keys[start : start + MANY])[1]
        rows = [line.split(":") for line in text.splitlines()]
        found += [(row[0], int(row[2])) for row in rows if len(row) == 7 and row[2].isdigit()]
    return found


class Response(ctypes.Structure):
    """pam_response of security/_pam_types.h."""

    _fields_ = [("text", ctypes.c_char_p), ("code", ctypes.c_int)]


CONVERSE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)


class Conversation(ctypes.Structure):
    """pam_conv of security/_pam_types.h."""

    _fields_ = [("function", CONVERSE), ("data", ctypes.c_void_p)]


class Pam:
    """Asks PAM whether a person can log in, by a service that asks SSSD and the file of role sssd."""

    def __init__(self):
        self.library = ctypes.CDLL("libpam.so.0")
        self.library.pam_start.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p]
        for name in ("pam_acct_mgmt", "pam_end"):
            getattr(self.library, name).argtypes = [ctypes.c_void_p, ctypes.c_int]
        # Messages to the person are not shown: PAM_CONV_ERR.
        self.conversation = Conversation(CONVERSE(lambda *_: 19), None)

    def admits(self, name):
        """Return True or False, None if that is not known."""
        handle = ctypes.c_void_p()
        conversation = ctypes.byref(self.conversation)
        if self.library.pam_start(SERVICE, name.encode(), conversation, ctypes.byref(handle)) != SUCCESS:
            return None
        status = self.library.pam_acct_mgmt(handle, 0)
        self.library.pam_end(handle, status)
        return True if status == SUCCESS else False if status in REFUSED else None


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


def jobs_of(uid):
    """Return the jobs of a user. Raises FollowError."""
    status, text = output("squeue", "--all", "--noheader", "--format=%A %U")
    if status != 0:
        raise FollowError("squeue: " + text.strip())
    rows = [line.split() for line in text.splitlines()]
    return sorted({row[0] for row in rows if len(row) == 2 and row[1] == str(uid)})


def cancel_jobs(name, uid):
    """Cancel the jobs of a user and wait for their end. Raises FollowError."""
    jobs = jobs_of(uid)
    if jobs:
        output("scancel", *jobs)
        print("%s: jobs cancelled: %s" % (name, " ".join(jobs)), flush=True)
    deadline = time.monotonic() + ENDING
    while jobs and time.monotonic() < deadline:
        time.sleep(0.5)
        jobs = jobs_of(uid)
    if jobs:
        raise FollowError("%s: jobs have not ended yet: %s" % (name, " ".join(jobs)))


def set_default(cluster, names, account):
    """Make an account the default of people who have an association with it. Raises FollowError."""
    people = "name=" + ",".join(names)
    sacctmgr("modify", "user", "where", people, "cluster=" + cluster, "set", "defaultaccount=" + account)


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
        set_default(cluster, [name], default or others[0])
    sacctmgr("delete", "user", "where", "name=" + name, "account=" + account, "cluster=" + cluster)


class Follower:
    """Changes Slurm, and writes the record after each change."""

    def __init__(self, settings, accept):
        self.settings, self.accept = settings, accept
        self.accounts = [(one["key"], one["value"].lower()) for one in settings["accounts"]]
        self.known = {}
        if os.path.exists(RECORD):
            with open(RECORD) as file:
                self.known = json.load(file)["people"]
        self.online = False
        self.problems = []

    def write(self):
        """Write the record as a whole, readable for root alone."""
        content = {"online": self.online, "people": self.known, "problems": self.problems}
        with open(os.open(RECORD + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(content, file, indent=1, sort_keys=True)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(RECORD + ".new", RECORD)

    def follow(self):
        """Converge, and report what is not done."""
        members = {group: self.members(group) for group, _ in self.accounts}
        names = sorted({name for some in members.values() for name in some or ()} | set(self.known))
        pam = Pam()
        admitted = {name: None if name in self.settings["local"] else pam.admits(name) for name in names}
        found = dict(people(names))
        local = self.settings["local"]
        keys = [word for name, uid in sorted(local.items()) for word in (name, str(uid))]
        self.problems += collisions(local, list(found.items()) + people(keys))
        self.online = is_online()  # after the questions, of which the first without an answer changes that
        self.problems += [] if self.online else ["no server of the directory responds"]
        wanted = wanted_accounts(self.accounts, members, admitted)
        wanted = {name: wanted[name] for name in wanted if name in found}
        refused, left = departures(self.known, self.accounts, members, admitted, self.settings["departed"])
        if not self.online:  # what SSSD does not have in its cache looks as if it was gone
            wanted, left = {}, []
        elif is_unlikely(left, self.known, wanted) and not self.accept:
            what = "%d of %d people seem to have left the directory, so no association ends: %s"
            self.problems.append(what % (len(left), len(self.known), ", ".join(left[:8])) + ACCEPT)
            left = []
        elif not self.accept:
            for group, gone in unlikely_groups(left, self.known, wanted).items():
                what = "%d people seem to have left the group %s, so their associations do not end: %s"
                self.problems.append(what % (len(gone), group, ", ".join(gone[:8])) + ACCEPT)
                left = [name for name in left if name not in gone]
        self.change(wanted, found, refused + left)

    def members(self, group):
        """Return the members of a group of the directory, without names that are none in Slurm."""
        found = members_of(group)
        if found is None:
            self.problems.append("the directory has no group %s" % group)
            return None
        odd = [name for name in found if not re.match(NAME + "$", name)]
        if odd:
            self.problems.append("%s: cannot be users of Slurm: %s" % (group, ", ".join(map(ascii, odd[:8]))))
        return [name for name in found if name not in odd]

    def change(self, wanted, found, leaving):
        """End and add associations; one that Slurm refuses is tried again the next time."""
        cluster = self.settings["cluster"]
        present = associations(cluster) if wanted or leaving else set()
        for name in leaving:
            self.attempt(self.leave, name, present)
        for account in sorted({account for _, account in wanted.values()} - {one for _, one in present}):
            self.problems.append("Slurm has no account %s: list it in slurm_head_accounts" % account)
        missing = {}
        for name, (group, account) in sorted(wanted.items()):
            if ("", account) in present and (name, account) not in present:
                missing.setdefault(account, []).append((name, {"account": account, "group": group, "uid": found[name]}))
        for account, rows in sorted(missing.items()):
            for start in range(0, len(rows), MANY):
                self.add(account, dict(rows[start : start + MANY]), present)
        for name, (group, account) in sorted(wanted.items()):
            one = self.known.get(name)
            if one and (name, account) in present:
                if one["account"] != account:
                    self.attempt(self.move, name, account, present)
                if one["account"] == account:
                    one.update(group=group, uid=found[name])

    def attempt(self, function, *arguments):
        """Change one person or several, and keep the record."""
        try:
            function(*arguments)
        except FollowError as error:
            self.problems.append(str(error))
        self.write()

    def leave(self, name, present):
        """End what the record has of a person."""
        one = self.known[name]
        cancel_jobs(name, one["uid"])
        if (name, one["account"]) in present:
            end(self.settings["cluster"], name, one["account"], present)
            print("%s: association with %s ended" % (name, one["account"]), flush=True)
        del self.known[name]

    def add(self, account, people, present):
        """Give people an association with an account, their default if they have no other one, and record them."""
        cluster, names = self.settings["cluster"], sorted(people)
        try:
            sacctmgr("add", "user", "name=" + ",".join(names), "account=" + account, "cluster=" + cluster)
        except FollowError as error:
            half = len(names) // 2
            if not half:
                self.problems.append(str(error))
            for some in (names[:half], names[half:]) if half else ():  # one whom Slurm refuses keeps out no other
                self.add(account, {name: people[name] for name in some}, present)
            return
        new = sorted(people.keys() - {user for user, _ in present})
        for name in names:
            print("%s: associated with %s" % (name, account), flush=True)
            present.add((name, account))
            self.known.setdefault(name, people[name])  # a record of another account stays until that has ended
        self.write()
        if new:
            self.attempt(set_default, cluster, new, account)

    def move(self, name, account, present):
        """End the recorded association of a person who has one with another account now."""
        before = self.known[name]["account"]
        if (name, before) in present:
            end(self.settings["cluster"], name, before, present, account)
            print("%s: association with %s ended" % (name, before), flush=True)
        self.known[name]["account"] = account


def main(arguments):
    """Follow the directory; return 0 also if something was not done, for which no verb has to fail."""
    if arguments not in ([], ["--accept-departures"]):
        print(__doc__, file=sys.stderr)
        return 2
    with open(SETTINGS) as file:
        settings = json.load(file)
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
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
