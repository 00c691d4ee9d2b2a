"""What follows from a directory for Slurm's associations: who gets one, who has left, what is rather a fault."""

LIKELY, PART = 2, 4  # so many departures in a day, or this part of all people, are likely


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


def is_unlikely(left, known, wanted, before):
    """Return whether an answer of the directory is rather a fault: no person remains, or many have left in a day.

    `before` is the number of those who left in the last day and are no longer known.
    """
    return bool(left) and (not wanted or len(left) + before > max(LIKELY, (len(known) + before) // PART))


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


def collisions(local, groups, entries, known):
    """Return by name the people of the directory with a name or an ID of others: whether they can log in, and why.

    `local` has UIDs by name and `groups` names by GID, of the inventory and the node; `entries` are triples of name,
    UID and GID. Of people with one UID, it stays unknown whether the recorded one can log in, so they do not leave.
    """
    owner = {uid: name for name, uid in local.items()}
    found = {}
    for name, uid, gid in sorted(set(entries)):
        same = sorted({one for one, number, _ in entries if number == uid} - {name})
        if name in local:
            found[name] = (None, "%s is a local account and a person of the directory (UID %d)" % (name, uid))
        elif uid in owner:
            found[name] = (False, "UID %d is that of the local account %s and of %s" % (uid, owner[uid], name))
        elif gid in groups:
            found[name] = (False, "GID %d is that of the local group %s and of %s" % (gid, groups[gid], name))
        elif same:
            is_recorded = name in known and known[name]["uid"] == uid
            why = "UID %d is that of %s and of %s in the directory" % (uid, name, ", ".join(same[:8]))
            found[name] = (None if is_recorded else False, why)
    return found
