"""Errors a user can cause. Each is one line: what was given, and what is allowed."""


class InputError(ValueError):
    """A value the user gave is not usable. The command line prints it and exits with code 2."""


class UnsupportedModelError(InputError, TypeError):
    """The given module or file is none of the supported models."""
