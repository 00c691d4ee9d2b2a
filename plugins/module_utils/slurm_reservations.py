"""Compare Slurm's reservations with what `scontrol --oneliner show reservations` prints.

Times are seconds since 1970: scontrol prints them with SLURM_TIME_FORMAT=%s, which all releases read, and reads the
local time of the node, as time.mktime does.

Source: scontrol/create_res.c, api/reservation_info.c, common/proc_args.c and slurmctld/reservation.c in src of
github.com/SchedMD/slurm, branches slurm-21.08 to slurm-26.05. Of TRES, 21.08 and 22.05 have `cpu` alone. The flag
USER_DELETE is of later releases, too.
"""

from __future__ import annotations

import calendar
import datetime
import re
import time

COUNT, FEATURES, FLAGS, MINUTES, NAME, NAMES, NODES, SECONDS, TIME, TRES = range(10)
OPTIONS = {
    "Accounts": NAMES,
    "Duration": MINUTES,
    "EndTime": TIME,
    "Features": FEATURES,
    "Flags": FLAGS,
    "MaxStartDelay": SECONDS,
    "NodeCnt": COUNT,
    "Nodes": NODES,
    "PartitionName": NAME,
    "StartTime": TIME,
    "TRES": TRES,
    "Users": NAMES,
}
_EXPECTED = {
    COUNT: "a whole number from 1",
    FEATURES: "features such as a100&nvlink",
    FLAGS: "flags of scontrol(1) such as MAINT, IGNORE_JOBS or WEEKLY",
    MINUTES: "minutes, or a quoted time such as '2-00:00:00'",
    NAME: "a name",
    NAMES: "a list of names",
    NODES: "a list of workers and of sub-groups of them, or ALL",
    SECONDS: "minutes, or a quoted time such as '00:10:00'",
    TIME: "a quoted local time of the head such as '2027-03-01T08:00'",
    TRES: "resources such as {cpu: 64} or {gres/gpu: 8}",
}
ALL = "ALL"
# Slurm moves the times of a reservation with one of these flags by itself.
RECURRING = ("DAILY", "HOURLY", "WEEKDAY", "WEEKEND", "WEEKLY")
# With these Slurm or a user ends a reservation before its time.
ENDING = {"PURGE_COMP", "USER_DELETE"}
REPLACING = {"REPLACE", "REPLACE_DOWN"}
# Of these, `Flags-=` removes one. Any other needs a new reservation.
_REMOVABLE = {"FLEX", "IGNORE_JOBS", "MAGNETIC", "MAINT", "PURGE_COMP", "STATIC_ALLOC", "USER_DELETE"}
_FLAGS = {*RECURRING, *REPLACING, *_REMOVABLE, "NO_HOLD_JOBS_AFTER_END", "OVERLAP"}
_PRINTED_FLAGS = {"STATIC": "STATIC_ALLOC"}
_UNSET = {"Accounts": "", "MaxStartDelay": "0", "PartitionName": "", "Users": ""}
_TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d(:\d\d)?")
_SPAN = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_FEATURES = re.compile(r"[A-Za-z0-9_.&|*()\[\]-]+")
_RESOURCE = re.compile(r"cpu|gres/[a-z0-9_.-]+(:[a-z0-9_.-]+)?")
_LARGEST = 10 * 366 * 86400


class OptionError(Exception):
    """An option is unknown or there twice, or its value has another form."""


def flatten(options):
    """Return declared options as text by name: times as Slurm reads them, lengths as seconds. Raises OptionError."""
    names, flat = {name.lower(): name for name in OPTIONS}, {}
    for given, value in options.items():
        name = names.get(str(given).lower())
        if name is None or name in flat:
            raise OptionError(f"{given} is {'there twice' if name else 'unknown'}")
        try:
            text = _canonical(OPTIONS[name], value)
            flat[name] = text.lower() if name == "Accounts" else text  # as Slurm stores them
        except ValueError:
            raise OptionError(f"{name}: got {value}, expected {_EXPECTED[OPTIONS[name]]}") from None
    return flat


def expected(given):
    """Return for an error message what an option's value can be."""
    return _EXPECTED[next(kind for name, kind in OPTIONS.items() if name.lower() == given.lower())]


def conflict(flat):
    """Return what is wrong with options that are each valid; None if a reservation can have them together."""
    flags = set(flat.get("Flags", "").split(","))
    conflicts = {
        "StartTime is missing": "StartTime" not in flat,
        "got EndTime and Duration, expected one of them": {"EndTime", "Duration"} <= flat.keys(),
        "EndTime or Duration is missing": not {"EndTime", "Duration"} & flat.keys(),
        "EndTime is not after StartTime": flat.get("EndTime", "9") <= flat.get("StartTime", ""),
        "got Nodes and NodeCnt, expected one of them": {"Nodes", "NodeCnt"} <= flat.keys(),
        "Nodes, NodeCnt or TRES is missing": not {"Nodes", "NodeCnt", "TRES"} & flat.keys(),
        "Users or Accounts is missing": not {"Users", "Accounts"} & flat.keys(),
        "got several of the flags " + ", ".join(RECURRING): len(flags.intersection(RECURRING)) > 1,
        "REPLACE and REPLACE_DOWN need NodeCnt, without MAINT and STATIC_ALLOC": (
            REPLACING & flags and ("NodeCnt" not in flat or {"MAINT", "STATIC_ALLOC"} & flags)
        ),
    }
    return next((text for text, holds in conflicts.items() if holds), None)


def _words(value):
    parts = value if isinstance(value, list) else str(value).split(",")
    return [str(part).strip() for part in parts if str(part).strip()]


def _canonical(kind, value):
    text = str(value).strip()
    if isinstance(value, (dict, datetime.date, bool)) and not (kind == TRES and isinstance(value, dict)):
        raise ValueError(value)  # YAML reads a time without quotes as a date
    if isinstance(value, list) and kind not in (NAMES, NODES, FLAGS, TRES):
        raise ValueError(value)
    if kind in (NAMES, NODES, FLAGS):
        return ",".join(_names(kind, value))
    if kind == TRES:
        return ",".join(sorted(f"{key}={amount}" for key, amount in _tres(value)))
    if kind == TIME:
        return _local(_epoch(text))
    if kind in (MINUTES, SECONDS):
        seconds = seconds_of(text)
        seconds = -(-seconds // 60) * 60 if kind == MINUTES else seconds
        return str(_within(seconds, 1))
    if kind == COUNT:
        return str(_within(int(text), 1))
    if not (_FEATURES if kind == FEATURES else _WORD).fullmatch(text):
        raise ValueError(value)
    return text


def _names(kind, value):
    words = _words(value)
    if kind == FLAGS:
        words = [word.upper() for word in words]
    if kind == NODES and [word.upper() for word in words] == [ALL]:
        return [ALL]
    if not words or not all(map(_WORD.fullmatch, words)) or (kind == FLAGS and not _FLAGS.issuperset(words)):
        raise ValueError(value)
    return sorted(set(words))


def _tres(value):
    pairs = value.items() if isinstance(value, dict) else (word.partition("=")[::2] for word in _words(value))
    found = [(str(key).strip().lower(), _within(int(str(amount)), 1)) for key, amount in pairs]
    if not found or not all(_RESOURCE.fullmatch(key) for key, _ in found):
        raise ValueError(value)
    return found


def _within(number, least):
    if not least <= number <= _LARGEST:
        raise ValueError(number)
    return number


def seconds_of(text):
    """Return the seconds of a length of time: minutes, or MINUTES:SECONDS, HOURS:MINUTES:SECONDS, or with DAYS-."""
    match = _SPAN.fullmatch(text)
    if not match:
        raise ValueError(text)
    days, first, second, third = (int(group) if group else None for group in match.groups())
    if days is None and third is None:
        return first * 60 + (second or 0)
    return (days or 0) * 86400 + first * 3600 + (second or 0) * 60 + (third or 0)


def _epoch(text):
    if not _TIME.fullmatch(text):
        raise ValueError(text)
    return int(time.mktime(time.strptime(text if text.count(":") == 2 else f"{text}:00", "%Y-%m-%dT%H:%M:%S")))


def _local(epoch):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(epoch))


def lines_of(printed):
    """Return the printed line of each reservation by its name."""
    lines = {re.match(r"ReservationName=(\S+)", line): line for line in printed.splitlines()}
    return {match[1]: line for match, line in lines.items() if match}


def fields_of(line):
    """Return the fields of a printed reservation; those without a value are empty."""
    return {key: "" if value == "(null)" else value for key, value in re.findall(r"(\w+)=(\S*)", line)}


def expand(nodes):
    """Return the names of Slurm's notation such as gpu[01-03,07],login."""
    names = set()
    for stem, inner, plain in re.findall(r"([^,\[\]]*)\[([^\]]*)\]|([^,\[\]]+)", nodes):
        for part in inner.split(",") if inner else ():
            first, _, last = part.partition("-")
            names |= {f"{stem}{number:0{len(first)}}" for number in range(int(first), int(last or first) + 1)}
        names |= {plain} if plain else set()
    return names


def times(flat):
    """Return start and end of declared options."""
    start = _epoch(flat["StartTime"])
    return start, _epoch(flat["EndTime"] if "EndTime" in flat else _local(start + int(flat["Duration"])))


def recurrence(flags):
    """Return the one of flags with which a reservation recurs, else None."""
    return next((flag for flag in RECURRING if flag in flags), None)


def flags_of(fields):
    """Return the printed flags of a reservation by the names that scontrol reads."""
    words = (word.partition("=")[0] for word in fields.get("Flags", "").split(",") if word)
    return {_PRINTED_FLAGS.get(word, word) for word in words}


def next_times(flat, now):
    """Return start and end of a new reservation, of one that recurs the next occurrence; None if it has ended."""
    start, end = times(flat)
    every = recurrence(flat.get("Flags", "").split(","))
    if every and start <= now:
        first, today = time.localtime(start), time.localtime(now)
        for step in range(9):
            day, hour = (0, today.tm_hour + step) if every == "HOURLY" else (step, first.tm_hour)
            begin = time.mktime((today.tm_year, today.tm_mon, today.tm_mday + day, hour, *first[4:6], 0, 0, -1))
            if begin > now and _recurs_on(every, time.localtime(begin).tm_wday, first.tm_wday):
                return int(begin), _after(int(begin), start, end)
    return (max(start, now), end) if end > now else None


def _recurs_on(every, weekday, first):
    days = {"WEEKDAY": range(5), "WEEKEND": (5, 6), "WEEKLY": (first,)}
    return weekday in days.get(every, range(7))


def _after(begin, start, end):
    """Return when what begins then ends, if it lasts as from start to end by the clock on the wall."""
    clock = calendar.timegm(time.localtime(begin)) + calendar.timegm(time.localtime(end))
    return int(time.mktime((*time.gmtime(clock - calendar.timegm(time.localtime(start)))[:8], -1)))


def _phase(every, moment):
    local = time.localtime(moment)
    return {"HOURLY": local[4:6], "WEEKLY": local[3:7]}.get(every, local[3:6])


def creation(flat, now):
    """Return scontrol's arguments for a new reservation; None if it has ended."""
    moments = next_times(flat, now)
    if not moments:
        return None
    start, end = moments
    given = {key: value for key, value in flat.items() if key != "Duration"}
    given.update(StartTime=_local(start), EndTime=_local(end))
    return [f"{key}={_written(key, given[key])}" for key in sorted(given)]


def _written(name, text):
    """Return a flattened value as scontrol reads it."""
    return f"{int(text) // 60}:{int(text) % 60:02}" if OPTIONS[name] == SECONDS else text


def differences(flat, fields, recorded, now):
    """Return scontrol's arguments that bring a printed reservation to declared options, and whether it must be new.

    `recorded` is what the last run declared. What is no longer declared is removed, unless it was changed by hand
    meanwhile. Slurm can change neither features nor resources nor the times of what has begun.
    """
    needed, must_be_new = _moments(flat, fields, now)
    if "NodeCnt" in flat and fields["NodeCnt"] != flat["NodeCnt"]:
        needed["NodeCnt"] = flat["NodeCnt"]
    if "Nodes" in flat and not _has_nodes(flat["Nodes"], fields):
        needed["Nodes"] = flat["Nodes"]
    must_be_new |= "TRES" in flat and bool({"Nodes", "NodeCnt"} & needed.keys())
    must_be_new |= "Nodes" in recorded and "Nodes" not in flat and "SPEC_NODES" in flags_of(fields)
    for name in ("Accounts", "MaxStartDelay", "PartitionName", "Users"):
        current, before = _printed(name, fields), recorded.get(name)
        if name in flat and current != flat[name]:
            needed[name] = _written(name, flat[name])
        elif name not in flat and before and current == before:
            needed[name] = _UNSET[name]
    must_be_new |= flat.get("Features", fields["Features"]) != fields["Features"]
    must_be_new |= "Features" in recorded and "Features" not in flat and recorded["Features"] == fields["Features"]
    must_be_new |= not set(_words(flat.get("TRES", ""))) <= set(fields["TRES"].split(","))
    must_be_new |= "TRES" in recorded and "TRES" not in flat
    of_flags, needs_new = _flags(flat, fields, recorded)
    return [f"{name}={needed[name]}" for name in sorted(needed)] + of_flags, must_be_new or needs_new


def _printed(name, fields):
    """Return a printed value as `flatten` does."""
    text = fields[name]
    if name == "MaxStartDelay":
        return str(seconds_of(text)) if text else ""
    return ",".join(sorted(text.split(","))) if OPTIONS[name] == NAMES else text


def _has_nodes(nodes, fields):
    return "ALL_NODES" in flags_of(fields) if nodes == ALL else set(nodes.split(",")) == expand(fields["Nodes"])


def _moments(flat, fields, now):
    """Return the arguments for start and end, and whether the reservation must be new."""
    (start, end), begun, ends = times(flat), int(fields["StartTime"]), int(fields["EndTime"])
    every = recurrence(flat.get("Flags", "").split(","))
    if every and start <= now:
        is_same = _phase(every, begun) == _phase(every, start)
        end = _after(begun, start, end)
    else:
        is_same = begun == start or (start <= now and begun <= now)
    if is_same:
        return {} if ends == end else {"EndTime": _local(end)}, False
    begin, end = next_times(flat, now)
    return {"StartTime": _local(begin), "EndTime": _local(end)}, begun <= now


def _flags(flat, fields, recorded):
    """Return the arguments for flags, and whether the reservation must be new."""
    declared, current = (set(_words(text)) for text in (flat.get("Flags", ""), ",".join(flags_of(fields))))
    before = set(_words(recorded.get("Flags", "")))
    missing, gone = sorted(declared - current), sorted((before - declared) & current)
    differs = recurrence(declared) != recurrence(current) and recurrence(current) is not None
    needed = ["Flags=" + ",".join(missing)] if missing else []
    needed += ["Flags-=" + ",".join(gone)] if gone else []
    return needed, differs or not _REMOVABLE.issuperset(gone)
