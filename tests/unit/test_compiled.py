"""Templates that are compiled once: Ansible's own engine in a process of its own, whose environment is changed."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.labs import REPOSITORY

PROGRAM = r"""
import json, sys
from ansible.errors import AnsibleError
from ansible._internal._datatag._tags import TrustedAsTemplate
from ansible._internal._templating import _jinja_bits
from ansible._internal._templating._engine import TemplateEngine, TemplateOptions
from ansible.parsing.dataloader import DataLoader

trusted = TrustedAsTemplate().tag
number, before = 0, _jinja_bits.AnsibleEnvironment._compile
def counted(self, *given):
    global number
    number += 1
    return before(self, *given)
_jinja_bits.AnsibleEnvironment._compile = counted
if sys.argv[1] == "once":
    from clusterctl.ansible import compiled
    compiled.keep()

def each(*variables):  # an engine for each, as for each task
    return [TemplateEngine(loader=DataLoader(), variables=known) for known in variables]

def text(engine, source, **options):
    try:
        return engine.template(trusted(source), options=TemplateOptions(**options))
    except AnsibleError as error:
        return type(error).__name__

def condition(engine, source):
    return engine.evaluate_conditional(trusted(source))

one, two = each({"x": 1, "inner": trusted("{{ x }}")}, {"x": 2, "inner": trusted("<{{ x }}>")})
print(json.dumps({
    "values": [text(one, "{{ x + 1 }} {{ inner }}"), text(two, "{{ x + 1 }} {{ inner }}")],
    "plain and inner": [text(one, "{{ x }}"), text(two, "{{ inner }}")],
    "lines": [text(one, head + "a\n{% if true %}\nb\n{% endif %}\n") for head in ("", "#jinja2: trim_blocks:False\n")],
    "backslashes": [text(one, r"{{ 'a\\n' }}", escape_backslashes=escape) for escape in (True, False)],
    "conditions": [condition(one, "x == 1"), condition(two, "x == 1"), condition(one, "x != 1")],
    "random": len({text(one, "{{ 1000000000 | random }}") for _ in range(9)}) > 1,
    "false": [text(one, "{{ y"), text(one, "{{ y"), text(one, "{{ y }}"), text(two, "{{ y }}")],
    "compiled": number,
}))
"""


def results(how: str) -> dict[str, Any]:
    argv = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.proves("roles", "Templates compiled once have the values that Ansible gives them.")
def test_templates__compiled_once__have_the_same_values() -> None:
    once, always = results("once"), results("always")
    compiled, each_time = once.pop("compiled"), always.pop("compiled")
    assert once == always
    assert once["values"] == ["2 1", "3 <2>"]
    assert once["lines"][0] != once["lines"][1]
    assert once["backslashes"][0] != once["backslashes"][1]
    assert once["conditions"] == [True, False, False]
    assert once["random"]
    assert once["false"][0] == once["false"][1]
    assert compiled < each_time - 10
