"""Compare limits and other options of Slurm's accounts, users and QOS with what sacctmgr prints.

Each option is one value, but limits of trackable resources (TRES) and flags are separate: `GrpTRES` of `gres/gpu` is
declared, compared and removed without that of `cpu`. Values are compared in one form, whatever their notation is.

Source of the options: association_functions.c, qos_functions.c and common.c in src/sacctmgr of
github.com/SchedMD/slurm, branches slurm-21.08 to slurm-26.05. All of these releases set and print each option.
"""

from __future__ import annotations

import re

COUNT, TRES, WALL, SECONDS, SHARE, FACTOR, NAMES, NAME, FLAGS, MODE = range(10)

OF_ASSOCIATION = {
    "DefaultQOS": NAME,
    "Fairshare": SHARE,
    "GrpJobs": COUNT,
    "GrpJobsAccrue": COUNT,
    "GrpSubmitJobs": COUNT,
    "GrpTRES": TRES,
    "GrpTRESMins": TRES,
    "GrpTRESRunMins": TRES,
    "GrpWall": WALL,
    "MaxJobs": COUNT,
    "MaxJobsAccrue": COUNT,
    "MaxSubmitJobs": COUNT,
    "MaxTRESMinsPerJob": TRES,
    "MaxTRESPerJob": TRES,
    "MaxTRESPerNode": TRES,
    "MaxWall": WALL,
    "MinPrioThresh": COUNT,
    "Priority": COUNT,
    "QOS": NAMES,
}
OF_QOS = {
    "Flags": FLAGS,
    "GraceTime": SECONDS,
    "GrpJobs": COUNT,
    "GrpJobsAccrue": COUNT,
    "GrpSubmitJobs": COUNT,
    "GrpTRES": TRES,
    "GrpTRESMins": TRES,
    "GrpTRESRunMins": TRES,
    "GrpWall": WALL,
    "LimitFactor": FACTOR,
    "MaxJobsAccruePerAccount": COUNT,
    "MaxJobsAccruePerUser": COUNT,
    "MaxJobsPerAccount": COUNT,
    "MaxJobsPerUser": COUNT,
    "MaxSubmitJobsPerAccount": COUNT,
    "MaxSubmitJobsPerUser": COUNT,
    "MaxTRESMinsPerJob": TRES,
    "MaxTRESPerAccount": TRES,
    "MaxTRESPerJob": TRES,
    "MaxTRESPerNode": TRES,
    "MaxTRESPerUser": TRES,
    "MaxTRESRunMinsPA": TRES,
    "MaxTRESRunMinsPU": TRES,
    "MaxWall": WALL,
    "MinPrioThresh": COUNT,
    "MinTRESPerJob": TRES,
    "Preempt": NAMES,
    "PreemptMode": MODE,
    "Priority": COUNT,
    "UsageFactor": FACTOR,
    "UsageThreshold": FACTOR,
}
# The value that removes an option, by its kind or its name. sacctmgr prints an option without a value as empty, but:
# an association has a share, a QOS a priority, a factor, a grace time and the preemption mode of the cluster.
_UNSET = {COUNT: "-1", TRES: "-1", WALL: "-1", SECONDS: "0", SHARE: "1", FACTOR: "-1", NAMES: "", NAME: "-1"}
_UNSET_OF = {"PreemptMode": "cluster", "UsageFactor": "1"}
_FLAGS = "Flags:"  # the only option of that kind
_EXPECTED = {
    COUNT: "a whole number from 0",
    TRES: "resources such as {gres/gpu: 8, cpu: 64}",
    WALL: "minutes, or a quoted time such as '1-12:00:00'",
    SECONDS: "seconds, or a quoted time such as '00:05:00'",
    SHARE: "a whole number from 0, or parent",
    FACTOR: "a number from 0",
    NAMES: "a list of names",
    NAME: "a name",
    FLAGS: "flags of sacctmgr(1) such as DenyOnLimit",
    MODE: "cancel, requeue, suspend, within, priority or cluster",
}
# Source: slurmdb_str2_qos_flags and its table in src/common/slurmdb_defs.c, without flags that Slurm sets itself.
# `Relative` is of 23.11 and later.
_FLAGS_OF_QOS = {
    "denyonlimit", "enforceusagethreshold", "nodecay", "noreserve", "overpartqos", "partitionmaxnodes",
    "partitionminnodes", "partitiontimelimit", "relative", "requiresreservation", "usagefactorsafe",
}  # fmt: skip
# `within` is of 22.05, `priority` of 25.05 and later. sacctmgr takes `off` and `gang`, and stores neither in a QOS.
_MODES = {"cancel", "requeue", "suspend", "within", "priority", "cluster"}
_RESOURCE = re.compile(r"[a-z]+(/[a-z0-9_.:-]+)?")
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([kmgtp]?)")
_MB = {"": 1, "k": 1 / 1024, "m": 1, "g": 1024, "t": 1024**2, "p": 1024**3}
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_LARGEST = 2**31 - 1  # of a number of 32 bits, whose last values mean no limit


class OptionError(Exception):
    """An option is unknown or there twice, or its value has another form."""


def flatten(kinds, options):
    """Return declared options as text by name; TRES limits as `NAME:TRES`, flags as `NAME:FLAG`.

    `options` have text, numbers, lists, and mappings of TRES. Those without a value are left out. Raises OptionError.
    """
    names, found, flat = {name.lower(): name for name in kinds}, set(), {}
    for given, value in options.items():
        name = names.get(str(given).lower())
        if name is None or name in found:
            raise OptionError(f"{given} is {'there twice' if name else 'unknown'}")
        found.add(name)
        try:
            flat.update(_entries(name, kinds[name], value))
        except ValueError:
            raise OptionError(f"{name}: got {value}, expected {_EXPECTED[kinds[name]]}") from None
    return flat


def expected(kinds, given):
    """Return for an error message what an option's value can be."""
    return _EXPECTED[next(kind for name, kind in kinds.items() if name.lower() == given.lower())]


def printed(kinds, values):
    """Return as `flatten` what sacctmgr prints of the options `kinds`, in their order; another form stays as it is."""
    flat = {}
    for name, text in zip(kinds, values):  # noqa: B905 (Python 3.8)
        for part in _words(text) if kinds[name] == TRES else [text]:
            try:
                flat.update(_entries(name, kinds[name], part))
            except ValueError:
                flat[f"{name}:{part.partition('=')[0]}" if kinds[name] == TRES else name] = part
    return flat


def _entries(name, kind, value):
    if isinstance(value, dict) and kind != TRES:
        raise ValueError(value)
    if isinstance(value, list) and kind not in (TRES, NAMES, FLAGS):
        raise ValueError(value)
    if kind == TRES:
        return {f"{name}:{key}": text for key, text in _tres(value)}
    if kind == FLAGS:
        words = _words(value)
        if not _FLAGS_OF_QOS.issuperset(word.lower() for word in words):
            raise ValueError(value)
        return {f"{name}:{word.lower()}": word for word in words}
    text = _canonical(kind, value)
    return {name: text} if text else {}


def _words(value):
    parts = value if isinstance(value, list) else str(value).split(",")
    return [str(part).strip() for part in parts if str(part).strip()]


def _tres(value):
    pairs = value.items() if isinstance(value, dict) else (word.partition("=")[::2] for word in _words(value))
    for key, amount in pairs:
        key, match = str(key).strip().lower(), _AMOUNT.fullmatch(str(amount).strip().lower())
        if not _RESOURCE.fullmatch(key) or not match or (key != "mem" and not match[0].isdigit()):
            raise ValueError(amount)
        yield key, str(int(float(match[1]) * _MB[match[2]])) if key == "mem" else match[0]


def _canonical(kind, value):
    if kind in (NAMES, MODE):
        words = sorted(word.lower() for word in _words(value))
        if kind == MODE and not _MODES.issuperset(words):
            raise ValueError(value)
        return ",".join(words)
    text = str(value).strip().lower()
    if not text or kind == NAME:
        return text
    if kind in (WALL, SECONDS):
        return str(_seconds(text, 60) // 60 if kind == WALL else _seconds(text, 1))
    if kind == FACTOR:
        return f"{_at_least_0(float(text)):f}"
    return text if kind == SHARE and text == "parent" else str(_at_least_0(int(text)))


def _at_least_0(number):
    if not 0 <= number <= _LARGEST:
        raise ValueError(number)
    return number


def _seconds(text, of_bare_number):
    """Return the seconds of a time such as 1-12:00:00, 12:00 (minutes and seconds), or a number."""
    match = _TIME.fullmatch(text)
    if not match:
        raise ValueError(text)
    days, first, second, third = (int(group) if group else None for group in match.groups())
    if days is not None:
        seconds = days * 86400 + first * 3600 + (second or 0) * 60 + (third or 0)
    elif second is None:
        seconds = first * of_bare_number
    else:
        seconds = first * 60 + second if third is None else first * 3600 + second * 60 + third
    return _at_least_0(seconds)


def arguments(kinds, declared, current, recorded):
    """Return sacctmgr's arguments that bring an object from `current` to `declared`, all as `flatten` returns them.

    `recorded` is what the run before declared. What is no longer declared is removed, unless it was changed by hand
    meanwhile. All other options of the object stay.
    """
    wanted = {key: value for key, value in declared.items() if differs(current.get(key), value)}
    gone = [key for key, value in recorded.items() if key not in declared and not differs(current.get(key), value)]
    of_tres, result = {}, []
    for key, value in [*wanted.items(), *((key, None) for key in gone)]:
        name, _, part = key.partition(":")
        if value is None:
            value = _UNSET_OF.get(name, _UNSET.get(kinds[name]))
        if kinds[name] == TRES:
            of_tres.setdefault(name, []).append(f"{part}={value}")
        elif kinds[name] != FLAGS:
            result.append(f"{name}={value}")
    flags = _flags(wanted, current, gone) if any(key.startswith(_FLAGS) for key in [*wanted, *gone]) else []
    # Until 25.05 sacctmgr also reads `-=` as the operator of the options behind it.
    return sorted([*result, *(f"{name}={','.join(parts)}" for name, parts in of_tres.items())]) + flags


def _flags(wanted, current, gone):
    """Return the argument for all flags: of several `Flags+=`, sacctmgr uses only the last."""
    before = {key: value for key, value in current.items() if key.startswith(_FLAGS)}
    after = [value for key, value in {**before, **wanted}.items() if key.startswith(_FLAGS) and key not in gone]
    return [f"Flags={','.join(sorted(after))}" if after else f"Flags-={','.join(sorted(before.values()))}"]


def differs(one, other):
    """Return whether the text of an option, or None, differs from another one."""
    return (one or "").lower() != other.lower()
