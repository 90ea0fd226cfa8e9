"""The command `rti`. Each command imports what it needs when it runs, so that `rti --help` answers at once."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence

import typer

import rti.cli.figure_data  # noqa: F401  adds commands to rti figure
from rti import __version__
from rti.cli.bench import bench
from rti.cli.compare import compare
from rti.cli.eval import evaluations
from rti.cli.figure import figures
from rti.cli.generate import generate
from rti.cli.gone import without_what_is_gone
from rti.cli.info import info
from rti.cli.output import one_line_warnings, safe, show_error
from rti.cli.probe import probes
from rti.cli.regions import regions
from rti.cli.sample import sample
from rti.cli.score import scores
from rti.cli.study import study
from rti.cli.train import SettingsCommand, adapt, pretrain, train
from rti.cli.tune import tune
from rti.cli.web import web
from rti.errors import InputError

# Newer releases of typer carry a click of their own; its errors are found through typer either way.
ClickException = next(parent for parent in typer.BadParameter.__mro__ if parent.__name__ == "ClickException")

app = typer.Typer(
    name="rti",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Region tokens for pixel-space diffusion transformers: one checkpoint, every compute budget.",
)
for command in (web, sample, regions, info, bench, tune, study, generate, compare):
    app.command()(command)
for command in (adapt, train, pretrain):
    app.command(cls=SettingsCommand)(command)
app.add_typer(evaluations, name="eval")
app.add_typer(scores, name="score")
app.add_typer(probes, name="probe")
app.add_typer(figures, name="figure")


def _version(show: bool) -> None:
    if show:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    _traceback: bool = typer.Option(False, "--traceback", help="Show where an unexpected error came from."),
):
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command. Bad input is one line on stderr and exit code 2; anything unforeseen one line and 1."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Before torch is imported: by default libgomp's threads spin for milliseconds where they wait for one another, and
    # beside any other busy program they then hold the very core that they wait for.
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    try:
        with one_line_warnings():
            code = app(args=without_what_is_gone(arguments), standalone_mode=False)
    except InputError as error:
        show_error(str(error))
        code = 2
    except ClickException as error:
        if error.format_message():  # there is none where the help was shown instead
            show_error(error.format_message())
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        show_error("interrupted")
        code = 130
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # whoever was about to look for it
            show_error(f"no file or folder can be called {str(error.filename)[:60]}...: the name is too long")
            sys.exit(2)
        if "--traceback" in arguments or os.environ.get("RTI_TRACEBACK"):
            print(safe(traceback.format_exc()), file=sys.stderr)
        else:
            advice = "this should not happen; rti --traceback COMMAND, or RTI_TRACEBACK=1, shows where"
            show_error(f"{type(error).__name__}: {str(error) or 'no message'} ({advice})")
        code = 1
    sys.exit(code if isinstance(code, int) else 0)
