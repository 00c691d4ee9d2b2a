"""Compile templates and expressions once in a process: Ansible compiles each whenever it is evaluated.

Processes that are forked later have what was compiled before. The code depends on the text and on what Ansible lets a
template set. It holds no result: Ansible's environment computes nothing while it compiles, not even what is constant.
"""

from types import CodeType
from typing import Any

from ansible._internal._templating import _jinja_bits
from jinja2.environment import TemplateExpression

_Key = tuple[object, ...]


def keep() -> None:
    """Have Ansible's environment keep what it has compiled."""
    environment = _jinja_bits.AnsibleEnvironment
    compile_text, compile_expression = environment.compile, environment.compile_expression
    kept: dict[_Key, CodeType] = {}
    compiling: list[_Key] = []

    def text(self: Any, source: Any, *options: Any, **others: Any) -> Any:
        """Compile a text; an expression comes here without its own."""
        if options or others or not (compiling or isinstance(source, str)):
            return compile_text(self, source, *options, **others)
        key = _key(self, "text", source) if isinstance(source, str) else compiling[-1]
        if key not in kept:
            kept[key] = compile_text(self, source)
        return kept[key]

    def expression(self: Any, source: str, undefined_to_none: bool = True) -> Any:
        key = _key(self, "expression", source)
        if key not in kept:
            compiling.append(key)
            try:
                return compile_expression(self, source, undefined_to_none)
            finally:
                compiling.pop()
        template = self.template_class.from_code(self, kept[key], self.make_globals(None))
        return TemplateExpression(template, undefined_to_none)

    environment.compile, environment.compile_expression = text, expression


def _key(environment: Any, *what: object) -> _Key:
    """Return what the code of a template depends on."""
    context = _jinja_bits._TemplateCompileContext.current(optional=True)
    settings = [getattr(environment, name) for name in _jinja_bits._TEMPLATE_OVERRIDE_FIELD_NAMES]
    return (*what, context is not None and context.escape_backslashes, *settings)
