"""Load the programs of role kubernetes_head, which have no suffix, and their modules."""

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType

from clusterctl.util import paths

FILES = paths.content() / "roles/kubernetes_head/files"


def load(name: str) -> ModuleType:
    """Return a program or a module as Python's module."""
    if str(FILES) not in sys.path:
        sys.path.insert(0, str(FILES))
    if (FILES / f"{name}.py").is_file():
        return importlib.import_module(name)
    loader = SourceFileLoader(name.replace("-", "_"), str(FILES / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    before = sys.dont_write_bytecode
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module
