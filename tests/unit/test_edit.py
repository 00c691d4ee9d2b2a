"""Editing an inventory: only the lines that must change do, in any style, and what is not safe is refused."""

import contextlib
import itertools
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clusterctl.commands import initialise
from clusterctl.inventory import edit, hostrange
from clusterctl.inventory import model as inventory
from clusterctl.lab import lab_inventory
from clusterctl.lab.lab import Lab
from clusterctl.lab.podman import LabError
from clusterctl.lab.settings import Settings
from clusterctl.util import paths
from clusterctl.util.errors import InputError
from clusterctl.workspace import edits, home

EXAMPLES = 200

HEAD = """\
all:
  vars:
    cluster_name: aurora
  children:
    slurm_head:
      hosts:
        head1: {ansible_host: 10.0.0.10}
"""


def workers(hosts: str) -> str:
    """Return an inventory with this text as what the workers' group holds."""
    return HEAD + "    slurm_workers:\n" + textwrap.indent(textwrap.dedent(hosts), " " * 6)


@pytest.mark.proves("inventory", "Adding a host leaves groups that contain the workers' group unchanged.")
def test_a_group_that_has_the_workers_as_members_stays_as_it_is() -> None:
    """It stands before or behind them; hosts go where the workers are written."""
    members = "    apptainer: {children: {slurm_workers: {}, a100: {}}}\n"
    for old in (
        workers("hosts:\n  gpu01: {}\nchildren:\n  a100: {hosts: {gpu02: {}}}\n") + members,
        HEAD + members + workers("hosts:\n  gpu01: {}\nchildren:\n  a100: {hosts: {gpu02: {}}}\n").removeprefix(HEAD),
    ):
        new = edit.add(edit.add(old, "slurm_workers", {"gpu03": None}), "a100", {"gpu04": None})
        assert len(changes(old, new)) == 3
        assert members in new
        assert edit.remove(new, ["gpu03", "gpu04"]) == old


def changes(old: str, new: str) -> list[str]:
    """Return the lines that go and come, as a diff shows them."""
    lines = edits.diff(old, new, "inventory.yaml").splitlines()
    return [line for line in lines[2:] if line[0] in "+-\\"]


def members(text: str) -> dict[str, dict[str, Any]]:
    """Return each group's own hosts with their variables, ranges expanded, as another parser reads them."""
    found: dict[str, dict[str, Any]] = {}

    def group(name: str, value: Mapping[str, Any] | None) -> None:
        value = value or {}
        patterns = (value.get("hosts") or {}).items()
        found[name] = {host: given or {} for pattern, given in patterns for host in hostrange.expand(pattern)}
        for child, inner in (value.get("children") or {}).items():
            group(child, inner)

    group("all", yaml.safe_load(text)["all"])
    return found


# --- adding ---------------------------------------------------------------------------------------------------------

NEW = {"gpu3": "10.0.0.13"}


@pytest.mark.proves("inventory", "An added host takes the style and order of the hosts there.")
@pytest.mark.parametrize(
    ("hosts", "changed"),
    [
        # One host on a line, where its number belongs.
        (
            "hosts:\n  gpu2: {ansible_host: 10.0.0.12}\n  gpu10: {ansible_host: 10.0.0.20}\n",
            ["+        gpu3: {ansible_host: 10.0.0.13}"],
        ),
        # In the style of the neighbour: quotes, variables in a block.
        ("hosts:\n  gpu2: { ansible_host: 10.0.0.12 }\n", ["+        gpu3: {ansible_host: 10.0.0.13}"]),
        ("hosts:\n  \"gpu2\": {ansible_host: '10.0.0.12'}\n", ["+        \"gpu3\": {ansible_host: '10.0.0.13'}"]),
        (
            "hosts:\n  gpu2:\n    ansible_host: 10.0.0.12\n    ansible_port: 22\n",
            ["+        gpu3:", "+          ansible_host: 10.0.0.13"],
        ),
        (
            "hosts:\n  gpu1:   {ansible_host: 10.0.0.11}\n  gpu100: {ansible_host: 10.0.0.12}\n",
            ["+        gpu3: {ansible_host: 10.0.0.13}"],
        ),
        ("hosts:\n  gpu2: {ansible_port: 22, ansible_host: h}\n", ["+        gpu3: {ansible_host: 10.0.0.13}"]),
        (
            "hosts:\n    gpu2:\n        ansible_port: 22\n",
            ["+          gpu3:", "+              ansible_host: 10.0.0.13"],
        ),
        ("hosts:\n  gpu2:\n  gpu4:\n", ["+        gpu3: {ansible_host: 10.0.0.13}"]),
        # Not in order: at the end.
        ("hosts:\n  gpu9: {}\n  gpu1: {}\n", ["+        gpu3: {ansible_host: 10.0.0.13}"]),
        # Ranges count by their first host.
        ("hosts:\n  gpu[1:2]: {}\n  gpu[4:9]: {}\n", ["+        gpu3: {ansible_host: 10.0.0.13}"]),
        # In braces.
        (
            "hosts: {gpu2: {ansible_host: 10.0.0.12}}\n",
            [
                "-      hosts: {gpu2: {ansible_host: 10.0.0.12}}",
                "+      hosts: {gpu2: {ansible_host: 10.0.0.12}, gpu3: {ansible_host: 10.0.0.13}}",
            ],
        ),
        # No hosts yet.
        ("hosts:\n", ["+        gpu3: {ansible_host: 10.0.0.13}"]),
        ("hosts:  # none yet\n", ["+        gpu3: {ansible_host: 10.0.0.13}"]),
        (
            "hosts: {}  # none yet\nvars: {}\n",
            ["-      hosts: {}  # none yet", "+      hosts:  # none yet", "+        gpu3: {ansible_host: 10.0.0.13}"],
        ),
        ("hosts: ~\n", ["-      hosts: ~", "+      hosts:", "+        gpu3: {ansible_host: 10.0.0.13}"]),
        ("hosts: Null\n", ["-      hosts: Null", "+      hosts:", "+        gpu3: {ansible_host: 10.0.0.13}"]),
        # Lists near by have an indentation of their own, and a comment with a blank above heads several hosts.
        (
            "vars:\n  - a\n\nhosts:\n\n  # Rack 1\n  gpu11:\n    x:\n        - a: b\n          c: d\n",
            ["+        gpu3:", "+          ansible_host: 10.0.0.13"],
        ),
        ("vars: {}\n", ["+      hosts:", "+        gpu3: {ansible_host: 10.0.0.13}"]),
        ("", ["+      hosts:", "+        gpu3: {ansible_host: 10.0.0.13}"]),
    ],
)
def test_a_host_goes_where_a_person_would_put_it(hosts: str, changed: list[str]) -> None:
    old = workers(hosts)
    new = edit.add(old, "slurm_workers", NEW)
    assert changes(old, new) == changed
    if members(old)["slurm_workers"]:
        assert edit.remove(new, list(NEW)) == old


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("hosts:\n  gpu2: {}\n", "gpu3: {}"),
        ("hosts:\n  gpu2:\n", "gpu3:"),
        ("hosts:\n  gpu2: ~\n", "gpu3: ~"),
        ("hosts:\n  gpu2: {ansible_host: a}\n", "gpu3: {}"),
        ("hosts: {gpu2: {}}\n", "hosts: {gpu2: {}, gpu3: {}}"),
    ],
)
def test_a_host_without_variables_looks_like_those_there(hosts: str, expected: str) -> None:
    new = edit.add(workers(hosts), "slurm_workers", {"gpu3": None})
    assert expected in [line.strip() for line in new.splitlines()]
    assert members(new)["slurm_workers"]["gpu3"] == {}


def test_several_at_once_each_go_to_their_place() -> None:
    old = workers("hosts:\n  gpu2: {}\n  gpu4: {}\n  gpu10: {}\n")
    new = edit.add(old, "slurm_workers", {"gpu11": None, "gpu5": None, "gpu1": None, "gpu3": None, "gpu9": None})
    assert list(members(new)["slurm_workers"]) == [f"gpu{number}" for number in (1, 2, 3, 4, 5, 9, 10, 11)]
    unordered = workers("hosts:\n  gpu4: {}\n  gpu2: {}\n")
    new = edit.add(unordered, "slurm_workers", {"gpu3": None, "gpu1": None})
    assert list(members(new)["slurm_workers"]) == ["gpu4", "gpu2", "gpu3", "gpu1"]


@pytest.mark.parametrize(("address", "written"), [("fd00::1", '"fd00::1"'), ("gpu3.example.com", "gpu3.example.com")])
def test_addresses_are_quoted_where_they_must_be(address: str, written: str) -> None:
    new = edit.add(workers("hosts: {gpu1: {}}\n"), "slurm_workers", {"gpu3": address})
    assert f"gpu3: {{ansible_host: {written}}}" in new


def test_names_are_quoted_where_yaml_would_read_something_else() -> None:
    new = edit.add(workers("hosts:\n  gpu1: {}\n"), "slurm_workers", {"no": None, "12": None, "null": "off"})
    assert [line.strip() for line in new.splitlines()[-4:]] == [
        '"12": {}',
        "gpu1: {}",
        '"no": {}',
        '"null": {ansible_host: "off"}',
    ]


def test_a_sub_group_is_found_wherever_it_is() -> None:
    old = workers("""\
    children:
      rack1:
        children:
          a100: {hosts: {gpu1: {}}}  # fast
    """)
    assert changes(old, edit.add(old, "a100", {"gpu2": None})) == [
        "-            a100: {hosts: {gpu1: {}}}  # fast",
        "+            a100: {hosts: {gpu1: {}, gpu2: {}}}  # fast",
    ]
    assert members(edit.add(old, "rack1", {"gpu2": None}))["rack1"] == {"gpu2": {}}


@pytest.mark.proves("inventory", "A missing group is created in the style of the others.")
@pytest.mark.parametrize(
    ("old", "group", "changed"),
    [
        (
            HEAD + "    # Metrics.\n    monitoring:\n      hosts:\n        head1: {}\n",
            "slurm_workers",
            ["+    slurm_workers:", "+      hosts:", "+        gpu3: {ansible_host: 10.0.0.13}"],
        ),
        (
            HEAD,
            "a100",
            [
                "+    slurm_workers:",
                "+      children:",
                "+        a100:",
                "+          hosts:",
                "+            gpu3: {ansible_host: 10.0.0.13}",
            ],
        ),
        (
            workers("hosts:\n  gpu1: {ansible_host: 10.0.0.11}\n"),
            "a100",
            ["+      children:", "+        a100:", "+          hosts:", "+            gpu3: {ansible_host: 10.0.0.13}"],
        ),
        (
            "all:\n  children:\n    slurm_head: {hosts: {head1: {}}}\n    monitoring: {hosts: {head1: {}}}\n",
            "slurm_workers",
            ["+    slurm_workers: {hosts: {gpu3: {ansible_host: 10.0.0.13}}}"],
        ),
        (
            "all:\n  children:\n    slurm_head:    {hosts: {head1: {}}}\n    kubernetes:    {hosts: {head1: {}}}\n",
            "slurm_workers",
            ["+    slurm_workers: {hosts: {gpu3: {ansible_host: 10.0.0.13}}}"],
        ),
        (
            "all:\n    children:\n        slurm_head:\n            hosts: {head1: {}}\n",
            "slurm_workers",
            ["+        slurm_workers:", "+            hosts:", "+                gpu3: {ansible_host: 10.0.0.13}"],
        ),
        (
            "all:\n",
            "slurm_workers",
            ["+  children:", "+    slurm_workers:", "+      hosts:", "+        gpu3: {ansible_host: 10.0.0.13}"],
        ),
    ],
)
def test_a_group_that_is_not_there_is_made_in_the_style_of_the_others(old: str, group: str, changed: list[str]) -> None:
    assert changes(old, edit.add(old, group, NEW)) == changed


def test_hosts_come_before_the_children_of_a_group() -> None:
    old = workers("vars: {}\n# Fast ones.\nchildren:\n  a100: {hosts: {gpu1: {}}}\n")
    new = edit.add(old, "slurm_workers", {"gpu3": None})
    assert new.index("vars: {}\n") < new.index("gpu3: {}") < new.index("# Fast")


# --- removing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "names", "changed"),
    [
        ("hosts:\n  gpu1: {}\n  gpu2: {}  # slow\n  gpu3: {}\n", ["gpu2"], ["-        gpu2: {}  # slow"]),
        (
            "hosts:\n  gpu1: {}\n  # Its fan is loud.\n  # Very.\n  gpu2:\n    x: a\n    # y: b\n  gpu3: {}\n",
            ["gpu2"],
            [
                "-        # Its fan is loud.",
                "-        # Very.",
                "-        gpu2:",
                "-          x: a",
                "-          # y: b",
            ],
        ),
        # A heading stays, a comment that names the host goes.
        ("hosts:\n  gpu1: {}\n\n  # Rack 2\n  gpu2: {}\n  gpu3: {}\n", ["gpu2"], ["-        gpu2: {}"]),
        ("hosts:\n  # Rack 1\n  gpu2: {}\n  gpu3: {}\n\n  gpu4: {}\n", ["gpu2"], ["-        gpu2: {}"]),
        (
            "hosts:\n  # --- rack 2 ---\n  gpu2: {}\n",
            ["gpu2"],
            ["-      hosts:", "+      hosts: {}", "-        gpu2: {}"],
        ),
        (
            "hosts:\n  gpu1: {}\n\n  # gpu2: a loud fan\n  gpu2: {}\n  gpu3: {}\n",
            ["gpu2"],
            ["-        # gpu2: a loud fan", "-        gpu2: {}"],
        ),
        ("hosts:\n  # Rack 1\n\n  gpu2: {}\n  gpu3: {}\n", ["gpu2"], ["-        gpu2: {}"]),
        # A host that is commented out is not a comment.
        ("hosts:\n  gpu1: {}\n  # gpu2: {ansible_host: a}\n  gpu3: {}\n", ["gpu3"], ["-        gpu3: {}"]),
        ("hosts:\n  gpu1: {}\n  # gpu2:\n  #   ansible_host: a\n  gpu3: {}\n", ["gpu3"], ["-        gpu3: {}"]),
        ("hosts:\n  gpu1: {}\n# out\n  gpu3: {}\n", ["gpu3"], ["-        gpu3: {}"]),
        # Blank lines do not pile up.
        ("hosts:\n  gpu1: {}\n\n  gpu2: {}\n\n  gpu3: {}\n", ["gpu2"], ["-        gpu2: {}", "-"]),
        ("hosts:\n  gpu1: {}\n\n  gpu2: {}\n", ["gpu2"], ["-", "-        gpu2: {}"]),
        ("hosts:\n  gpu1: {}\n\n  gpu2: {}\n", ["gpu1"], ["-        gpu1: {}", "-"]),
        # All of them.
        (
            "hosts:  # all\n  gpu1: {}\n\n  gpu2: {}\nvars: {}\n",
            ["gpu1", "gpu2"],
            ["-      hosts:  # all", "-        gpu1: {}", "-", "-        gpu2: {}", "+      hosts: {}  # all"],
        ),
        (
            "hosts: {gpu1: {}, gpu2: {}}  # all\n",
            ["gpu1", "gpu2"],
            ["-      hosts: {gpu1: {}, gpu2: {}}  # all", "+      hosts: {}  # all"],
        ),
        # In braces.
        (
            "hosts: {gpu1: {}, gpu2: {}, gpu3: {}, gpu4: {}}\n",
            ["gpu1", "gpu2", "gpu4"],
            ["-      hosts: {gpu1: {}, gpu2: {}, gpu3: {}, gpu4: {}}", "+      hosts: {gpu3: {}}"],
        ),
        # Ranges.
        (
            "hosts:\n  # All of rack 1.\n  gpu[01:16]: {ansible_port: 22}  # rack 1\n",
            ["gpu05"],
            [
                "-        gpu[01:16]: {ansible_port: 22}  # rack 1",
                "+        gpu[01:04]: {ansible_port: 22}  # rack 1",
                "+        gpu[06:16]: {ansible_port: 22}  # rack 1",
            ],
        ),
        (
            "hosts:\n  gpu[1:9:2]:\n    ansible_port: 22\n",
            ["gpu1", "gpu7"],
            [
                "-        gpu[1:9:2]:",
                "+        gpu[3:5:2]:",
                "+        gpu9:",
                "+          ansible_port: 22",
            ],
        ),
        (
            "hosts: {'gpu[1:9]': {}, gpu10: {}}\n",
            ["gpu9", "gpu2"],
            ["-      hosts: {'gpu[1:9]': {}, gpu10: {}}", "+      hosts: {'gpu1': {}, 'gpu[3:8]': {}, gpu10: {}}"],
        ),
        (
            'hosts:\n  "[a:c]n": {}\n',
            ["an", "bn"],
            ['-        "[a:c]n": {}', '+        "cn": {}'],
        ),
        ("hosts:\n  gpu[1:2]: {}\n  gpu3: {}\n", ["gpu1", "gpu2"], ["-        gpu[1:2]: {}"]),
    ],
)
def test_a_host_goes_with_what_belongs_to_it(hosts: str, names: list[str], changed: list[str]) -> None:
    old = workers(hosts)
    assert changes(old, edit.remove(old, names)) == changed


def test_a_host_goes_from_every_group() -> None:
    old = """\
all:
  hosts:
    head1: {}
    gpu1: {ansible_host: a}  # here
  children:
    slurm_head: {hosts: {head1: {}}}
    slurm_workers:
      hosts: {gpu1: {}, gpu2: {}}
      children: {a100: {hosts: {gpu1: {}}}}
    monitoring:
      hosts:
        head1: {}
        # Also measured.
        gpu1: {}
"""
    assert (
        edit.remove(old, ["gpu1"])
        == """\
all:
  hosts:
    head1: {}
  children:
    slurm_head: {hosts: {head1: {}}}
    slurm_workers:
      hosts: {gpu2: {}}
      children: {a100: {hosts: {}}}
    monitoring:
      hosts:
        head1: {}
"""
    )


def test_ranges_of_several_parts_are_split_in_their_order() -> None:
    for pattern, names in (
        ("r[a:c]n[1:9:4]", {"rbn5"}),
        ("r[a:c]n[1:9:4]", {"ran1", "rbn1", "rcn1"}),
        ("n[098:102]", {"n099"}),
        ("n[0:12]", {"n1", "n11"}),
    ):
        rest = hostrange.without(pattern, names)
        expanded = [name for part in rest for name in hostrange.expand(part)]
        assert expanded == [name for name in hostrange.expand(pattern) if name not in names]
    assert hostrange.without("n[1:3]", {"x"}) == ("n[1:3]",)
    assert hostrange.without("n[1:2]", {"n1", "n2"}) == ()


# --- what is kept ---------------------------------------------------------------------------------------------------


@pytest.mark.proves("inventory", "An edit keeps line ends, byte order mark and the end of file.")
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_the_end_of_the_file_stay(end: str, final: bool, mark: str) -> None:
    old = workers("# Zürich 🚀\nhosts:\n  gpu1: {ansible_host: ä.example}  # größer\n")
    old = mark + (old if final else old.removesuffix("\n")).replace("\n", end)
    new = edit.add(old, "slurm_workers", {"gpu2": "10.0.0.2", "gpu3": None})
    assert new.count(end) == old.count(end) + 2
    assert new.count("\n") == new.count(end)
    assert new.endswith(f"{{}}{end}" if final else "gpu3: {}")
    assert new.startswith(old.rstrip())
    assert edit.remove(new, ["gpu2", "gpu3"]) == old
    assert edit.remove(new, ["gpu1"]).startswith(mark + "all:")


@pytest.mark.proves("inventory", "An edit keeps odd spacing, quotes, comments and document marks.")
def test_everything_else_stays_as_odd_as_it_was() -> None:
    odd = """\
# Odd
---
all:
  vars: {"cluster_name" : 'aurora',   x: [1,2 ,  3]}
  y: {
    # Some day.
    a: yes, b: 0x1F}

  children:
      slurm_workers:
        vars: { q: "a very long line, %s" }
        hosts: {gpu1: {become: True}, gpu2: {x: 010}}   # end   \n
      other:
        vars:
        - a
        -   b
...
# After
""" % ("x " * 100)
    new = edit.add(odd, "slurm_workers", {"gpu3": None})
    assert new == odd.replace("{x: 010}}", "{x: 010}, gpu3: {}}")
    assert edit.remove(new, ["gpu3"]) == odd
    assert edit.remove(odd, ["gpu1"]) == odd.replace("gpu1: {become: True}, ", "")


def test_blanks_are_made_regular_where_a_line_with_all_hosts_changes() -> None:
    old = workers("hosts: { gpu1: {},  gpu2:  {} }  # two\n")
    assert edit.add(old, "slurm_workers", {"gpu3": None}) == workers("hosts: {gpu1: {}, gpu2: {}, gpu3: {}}  # two\n")


def test_nothing_to_do_changes_nothing() -> None:
    old = workers("hosts: {gpu1: {}}")
    assert edit.add(old, "slurm_workers", {}) == old
    assert edit.remove(old, []) == old
    assert edits.diff(old, old, "inventory.yaml") == ""


def test_the_diff_is_safe_to_show() -> None:
    shown = edits.diff("a\tb\r\nc\x1b[2J\nd", "a\tb\r\nc\x1b[2J\ne\n", "inventory.yaml")
    assert shown == (
        "--- inventory.yaml\n+++ inventory.yaml\n@@ -1,3 +1,3 @@\n a\tb\n c\\x1b[2J\n"
        "-d\n\\ No newline at end of file\n+e\n"
    )


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (workers("hosts: &h {gpu1: {}}\n"), ":9:14: all.children.slurm_workers.hosts: got an anchor (&h)"),
        (workers("hosts: {gpu1: &h {}, gpu2: *h}\n"), "got an alias (*h)"),
        (workers("hosts: {gpu1: !x {}}\n"), "got a YAML tag (!x)"),
        (workers("hosts:\n  gpu1: {<<: {a: 1}}\n"), "got <<, which YAML cannot read as a value"),
        (workers("hosts:\n  gpu1: {}\n  gpu1: {}\n"), 'the key "gpu1" a second time'),
        (workers("hosts: [gpu1]\n"), "a group, its hosts or its children are not a mapping"),
        (workers("hosts: gpu1\n"), "a group, its hosts or its children are not a mapping"),
        (workers("- hosts\n"), "a group, its hosts or its children are not a mapping"),
        (workers("hosts:\n  1: {}\n  gpu1: {}\n"), "got 1 as a key, expected a name"),
        (workers("hosts:\n  GPU1: {}\n  gpu1: {}\n"), "bad host name"),
        (workers("hosts: {gpu1: {}}\n") + "---\na: b\n", "a second document, expected one"),
        (workers("hosts: {gpu1: {}}\n").replace("\n", "\r"), "got mixed line endings"),
        (workers("hosts: {gpu1: {}}\n").replace("\n", "\r\n", 1), "got mixed line endings"),
        (workers("hosts: {gpu1: {}}  # \udcff\n"), "or bytes that are not text"),
        ("all: [", "not valid YAML"),
        ("", "is empty"),
        ("hosts: {gpu1: {}}\n", 'has no key "all"'),
        ("all: {children: " + "{children: " * 30 + "}" * 31, "too deep"),
    ],
)
def test_what_is_no_plain_inventory_is_refused(text: str, message: str) -> None:
    for change in _changes(text):
        with pytest.raises(InputError) as caught:
            change()
        assert message in str(caught.value)


@pytest.mark.proves("inventory", "A layout that an edit would not keep is refused.")
@pytest.mark.parametrize(
    "text",
    [
        workers("hosts:\n  ? gpu1\n  : {}\n"),
        workers("hosts:\n  gpu1: {a: b\n    c}\n"),
        workers("hosts:\n  gpu1:\n    a: [b,\n      c]\n"),
        workers("hosts:\n  gpu1:\n    a: >\n      # no comment\n"),
        # In braces: no value, several lines, comments.
        workers("hosts: {gpu1, gpu2}\n"),
        workers("hosts: {gpu1: , gpu2: }\n"),
        workers("hosts: {gpu1: {}, gpu2: {},\n        gpu4: {}}\n"),
        workers("hosts: {\n  gpu1: {},  # slow\n  gpu2: {}\n}\n"),
        workers("hosts: {\n  # slow\n  gpu1: {},\n}\n"),
        '{"all": {"children": {"slurm_workers": {"hosts": {"gpu1": {}}}}}}\n',
    ],
)
def test_a_layout_that_would_not_be_kept_is_left_to_a_person(text: str) -> None:
    for change in _changes(text):
        with pytest.raises(InputError, match=r"would not keep \(edit the inventory by hand\)"):
            change()


def _changes(text: str) -> list[Callable[[], str]]:
    return [
        lambda: edit.add(text, "slurm_workers", {"gpu3": None}),
        lambda: edit.remove(text, ["gpu1"]),
    ]


def test_a_range_whose_variables_depend_on_the_position_is_not_split() -> None:
    old = workers("hosts:\n  gpu[1:9]: {a: '10.0.0.[1:9]'}\n  gpu10: {}\n")
    with pytest.raises(InputError, match="depends on the position"):
        edit.remove(old, ["gpu3"])
    assert "gpu[1:9]" not in edit.remove(old, [f"gpu{number}" for number in range(1, 10)])


@pytest.mark.parametrize(
    ("group", "hosts", "message"),
    [
        ("slurm_workers", {"gpu3": None}, 'the host "gpu3" is already in the group'),
        ("slurm_workers", {"gpu9": None}, 'the host "gpu9" is already in the group'),
        ("a100", {"gpu9": None}, 'the host "gpu9" is already in the group'),
        ("slurm_head", {"gpu5": None}, "is not a group of workers"),
        ("all", {"gpu5": None}, "is not a group of workers"),
        ("A100", {"gpu5": None}, "bad group name"),
        ("slurm_workers", {"gpu[5:6]": None}, "bad host name"),
        ("slurm_workers", {"a: {}\n  b": None}, "bad host name"),
        ("slurm_workers", {"gpu5": "10.0.0.300"}, "bad address"),
        ("slurm_workers", {"gpu5": "a}, x: {"}, "bad address"),
        ("slurm_workers", {"gpu5": ""}, "bad address"),
    ],
)
def test_hosts_that_cannot_be_added(group: str, hosts: dict[str, str | None], message: str) -> None:
    old = workers("hosts:\n  gpu[1:4]: {}\nchildren: {a100: {hosts: {gpu9: {}}}}\n")
    with pytest.raises(InputError) as caught:
        edit.add(old, group, hosts)
    assert message in str(caught.value)


def test_a_host_that_is_nowhere_cannot_be_removed() -> None:
    with pytest.raises(InputError, match=r'no host "gpu11" \(did you mean gpu1\?\)'):
        edit.remove(workers("hosts: {gpu1: {}}"), ["gpu11", "gpu1"])


# --- inventories that are loaded ------------------------------------------------------------------------------------


def _written_by_init(place: Path) -> Path:
    initialise.create(place / "aurora", "head1=10.0.0.1", ["gpu01=10.0.0.2", "gpu[02:04]"], "admin")
    return place / "aurora/inventory.yaml"


def _written_by_lab(place: Path) -> Path:
    longest = "edited".ljust(30, "x")
    with pytest.raises(LabError, match="at most 30"):
        Lab(f"{longest}x")
    lab = Lab(longest)
    lab._private.mkdir(parents=True)
    lab.key.write_text("a key")
    lab.key.chmod(0o600)
    chosen = Settings("edited", subnet="10.213.0.0/24")
    lab._write_inventory(lab_inventory.text(chosen, chosen.nodes(), lab.key, "http://10.213.0.2:3142", {}))
    return lab.inventory


def _example(place: Path) -> Path:
    (directory := place / "example").mkdir()
    source = paths.content() / "inventory/slurm/inventory.yaml"
    (directory / "inventory.yaml").write_bytes(source.read_bytes())
    return directory / "inventory.yaml"


@pytest.mark.parametrize("make", [_written_by_init, _written_by_lab, _example])
@pytest.mark.parametrize("group", ["slurm_workers", "a100"])
def test_what_comes_out_is_an_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, group: str) -> None:
    monkeypatch.delenv("CLUSTERCTL_VAULT_PASSWORD_FILE", raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    path = make(tmp_path)
    old = path.read_bytes().decode()
    before = home.load(path)
    new = edit.add(old, group, {"gpu10": "10.213.0.99", "gpu09": None})
    added = [line for line in changes(old, new) if "gpu" in line]
    assert [line.strip("+ ") for line in added] == ["gpu09: {}", "gpu10: {ansible_host: 10.213.0.99}"]
    assert not [line for line in changes(old, new) if not line.startswith("+")]
    path.write_bytes(new.encode())
    after = home.load(path)
    assert after.host("gpu10").address == "10.213.0.99"
    assert {"slurm_workers", group} <= after.host("gpu09").groups
    assert {host.name for host in after.hosts} == {host.name for host in before.hosts} | {"gpu09", "gpu10"}
    path.write_bytes(edit.remove(new, ["gpu02", "gpu09"]).encode())
    assert not {"gpu02", "gpu09"} & {host.name for host in inventory.load(path).hosts}


# --- any inventory --------------------------------------------------------------------------------------------------

_NAMES = st.sampled_from([*(f"gpu{number:02}" for number in range(1, 13)), "n1", "n9", "n10", "no", "12", "big-mem"])
_COMMENTS = ("# rack 1", "# Its fan is loud: höher", "#", "# gpu07: {}", "# gpu03:", "# --- old ---", "# gpu02, gpu03")


@st.composite
def _hosts(draw: st.DrawFn, taken: set[str], indent: str, step: int) -> str:
    """Return `hosts:` with hosts in some style, each line indented."""
    names = [name for name in draw(st.lists(_NAMES, min_size=1, max_size=6, unique=True)) if name not in taken]
    names = names or [next(f"x{number}" for number in itertools.count() if f"x{number}" not in taken)]
    if draw(st.booleans()):
        names.sort()
    taken.update(names)
    block = draw(st.sampled_from([True, True, False]))
    pad = draw(st.sampled_from(["", " "])) if block else ""
    inner = indent + " " * step
    entries = []
    for name in names:
        quote = draw(st.sampled_from(["", "", "'", '"'])) or ('"' if name in ("no", "12") else "")
        style = draw(st.sampled_from(["flow", "flow", "empty", "null", "block", "more"]))
        if style in ("null", "block") and not block:
            style = "flow"
        gap = " " * draw(st.sampled_from([1, 1, 1, 3 if block else 1])) if style != "null" else ""
        address = draw(st.sampled_from(["10.0.0.1", "'10.0.0.2'", '"::1"', "a.example"]))
        value = {
            "flow": f"{{{pad}ansible_host: {address}{pad}}}",
            "more": f"{{ansible_port: 22, {pad}ansible_host: {pad}{address}}}",
            "empty": "{}",
            "null": "",
            "block": f"\n{inner}    ansible_host: {address}\n{inner}    # note\n{inner}    ansible_port: 22",
        }[style]
        if block and name.startswith("gpu") and style != "flow" and draw(st.booleans()):
            name, quote = f"{name[-2:]}r[1:9]", quote or '"'
        entries.append(f"{quote}{name}{quote}:{'' if style == 'block' else gap}{value}")
    if not block:
        return f"{indent}hosts: {{{', '.join(entries)}}}\n"
    text = indent + "hosts:" + draw(st.sampled_from(["\n", "  # comment\n"]))
    for entry in entries:
        for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
            deep = draw(st.sampled_from([inner, inner, inner, inner + "  ", ""]))
            text += draw(st.sampled_from(["\n", f"{deep}{draw(st.sampled_from(_COMMENTS))}\n"]))
        text += inner + entry + draw(st.sampled_from(["", "", "  # über"])) + "\n"
    return text


@st.composite
def _inventories(draw: st.DrawFn) -> str:
    step = draw(st.sampled_from([2, 2, 4]))
    indents = [" " * (step * depth) for depth in range(8)]
    taken: set[str] = set()
    text = draw(st.sampled_from(["", "# The cluster\n\n", "---\n", "\ufeff"]))
    text += f"all:\n{indents[1]}vars: {{cluster_name: 'aurora'}}\n{indents[1]}children:\n"
    text += f"{indents[2]}slurm_workers:\n" + draw(_hosts(taken, indents[3], step))
    text += draw(st.sampled_from(["", "\n", f"{indents[3]}# Fast ones\n", f"{indents[4]}# gpu99: {{}}\n"]))
    text += f"{indents[3]}children:\n{indents[4]}a100:\n" + draw(_hosts(taken, indents[5], step))
    text += draw(st.sampled_from(["", "\n", f"{indents[2]}# Metrics\n"]))
    if draw(st.booleans()):
        text += f"{indents[2]}monitoring:\n" + draw(_hosts(set(), indents[3], step))
    text += draw(st.sampled_from(["", "\n", "# The end\n"]))
    if draw(st.booleans()):
        text = text.removesuffix("\n")
    return text.replace("\n", draw(st.sampled_from(["\n", "\n", "\r\n"])))


@pytest.mark.proves("inventory", "Hosts added and removed again leave 200 generated inventories identical.")
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    _inventories(),
    st.sampled_from(["slurm_workers", "a100"]),
    st.dictionaries(
        st.sampled_from(["gpu00", "gpu035", "gpu99", "n2", "off", "a", "zz", "7"]),
        st.sampled_from([None, "10.0.0.99", "fd00::9", "b.example", "on"]),
        min_size=1,
    ),
)
def test_what_is_added_and_removed_again_leaves_no_trace(old: str, group: str, hosts: dict[str, str | None]) -> None:
    new = edit.add(old, group, hosts)
    expected = members(old.removeprefix("\ufeff"))
    expected[group] |= {name: {"ansible_host": address} if address else {} for name, address in hosts.items()}
    assert members(new.removeprefix("\ufeff")) == expected
    assert new.count("\r") == (new.count("\n") if "\r" in old else 0)
    assert new.endswith("\n") == old.endswith("\n")
    assert all(line[line.index("#") :] in new for line in old.splitlines() if "#" in line)
    assert edit.remove(new, list(hosts)) == old


@pytest.mark.proves("inventory", "Removing hosts removes nothing else from generated inventories.")
@settings(max_examples=EXAMPLES, deadline=None)
@given(_inventories(), st.data())
def test_what_is_removed_is_all_that_goes(old: str, data: st.DataObject) -> None:
    before = members(old.removeprefix("\ufeff"))
    known = sorted({name for hosts in before.values() for name in hosts})
    names = data.draw(st.lists(st.sampled_from(known), min_size=1, unique=True))
    new = edit.remove(old, names)
    left = {group: {n: v for n, v in hosts.items() if n not in names} for group, hosts in before.items()}
    assert members(new.removeprefix("\ufeff")) == left
    assert [list(hosts) for hosts in members(new.removeprefix("\ufeff")).values()] == [list(h) for h in left.values()]
    assert new.count("\r") == (new.count("\n") if "\r" in old else 0)
    assert new.endswith("\n") == old.endswith("\n")


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    _inventories(),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 3), st.text("{}[],:#\n \"'&*<?|>-!%\t\r", max_size=3))),
)
@example(workers("hosts: |\n"), [])
def test_damaged_inventories_are_edited_rightly_or_refused(text: str, damage: list[tuple[int, int, str]]) -> None:
    for at, cut, put in damage:
        place = at % (len(text) + 1)
        text = text[:place] + put + text[place + cut :]
    added, removed = "", ""
    with contextlib.suppress(InputError):
        added = edit.add(text, "a100", {"zz": None})
    with contextlib.suppress(InputError):
        removed = edit.remove(text, ["n9"])
    with contextlib.suppress(yaml.YAMLError):  # tags, which are only data to the editor
        assert not added or "zz" in members(added.removeprefix("\ufeff"))["a100"]
        assert not removed or not any("n9" in hosts for hosts in members(removed.removeprefix("\ufeff")).values())
