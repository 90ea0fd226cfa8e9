"""Modules under the names they had in 0.1, for one release: importing one gives the new one, and a warning."""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "rti.orders": "rti.method.order",
    "rti.partition": "rti.method.partition",
    "rti.merge": "rti.method.merge",
    "rti.read": "rti.method.read",
    "rti.write": "rti.method.write",
    "rti.config": "rti.method.config",
    "rti.budget": "rti.method.budgets",
    "rti.core": "rti.elastic",
    "rti.reductions": "rti.method.reductions",
    "rti.scenes": "rti.lab.scenes",
    "rti.evaluation": "rti.lab.evaluation",
    "rti.generation": "rti.lab.pictures.generation",
    "rti.benchmark": "rti.lab.bench.benchmark",
    "rti.study": "rti.lab.study",
    "rti.probes": "rti.lab.probes",
}


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        old = next((old for old in MOVED if name == old or name.startswith(f"{old}.")), None)
        return None if old is None else ModuleSpec(name, self, loader_state=MOVED[old] + name.removeprefix(old))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = spec.loader_state
        warnings.warn(f"{spec.name} is now {new}; the old name goes in 0.3", FutureWarning, stacklevel=2)
        module = importlib.import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = module.__spec__.loader_state  # importing put the old name's there


sys.meta_path.insert(0, _Finder())  # before Python's own, which would load a second copy of a package's files
