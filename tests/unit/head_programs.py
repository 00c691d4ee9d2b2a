"""Load the programs of heads, which have no suffix, and their modules."""

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType

from clusterctl.util import paths

FOLDERS = [
    paths.content() / f"roles/{role}/files"
    for role in (
        "alert_drain",
        "alertmanager",
        "kubernetes_exporter",
        "kubernetes_head",
        "landing_page",
        "node_exporter",
        "slurm_exporter",
        "slurm_head",
    )
]


def load(name: str) -> ModuleType:
    """Return a program or a module as Python's module."""
    sys.path[:0] = [str(folder) for folder in FOLDERS if str(folder) not in sys.path]
    if any((folder / f"{name}.py").is_file() for folder in FOLDERS):
        return importlib.import_module(name)
    (file,) = (folder / name for folder in FOLDERS if (folder / name).is_file())
    loader = SourceFileLoader(name.replace("-", "_"), str(file))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    before = sys.dont_write_bytecode
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module
