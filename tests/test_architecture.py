"""The storeys of the package, by the contracts of import-linter in pyproject.toml."""

from pathlib import Path

from importlinter import cli


def test_imports_go_only_downwards():
    """And in no circle. import-linter prints which import breaks a contract."""
    assert (
        cli.lint_imports(config_filename=str(Path(__file__).parent.parent / "pyproject.toml"))
        == cli.EXIT_STATUS_SUCCESS
    )
