"""The package itself: its public names."""

import subprocess
import sys

import rti


def test_a_public_name_stays_what_it_is_when_every_file_has_been_imported():
    """Importing a file puts the module into the package under its name; that must not hide a public function.

    In a process of its own, since it depends on what was imported first.
    """
    program = """
import importlib, pkgutil, types, rti
for module in pkgutil.walk_packages(rti.__path__, "rti."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print([name for name in rti.__all__ if isinstance(getattr(rti, name), types.ModuleType)])
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"


def test_every_public_name_exists_and_an_unknown_one_is_an_attribute_error():
    for name in rti.__all__:
        assert getattr(rti, name) is not None
    assert set(rti.__all__) <= set(dir(rti))
    assert not hasattr(rti, "nonsense")
