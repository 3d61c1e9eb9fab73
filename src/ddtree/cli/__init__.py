"""The command line: arguments to frozen configuration, results to standard output.

The only package that prints, configures logging, reads the environment or exits. Commands import
what they run when they run, so that `--help` does not wait for torch.
"""

import sys

import typer

from ddtree.cli import bench, doctor, generate, models, serve
from ddtree.errors import DDTreeError

app = typer.Typer(
    name="ddtree",
    help="DDTree speculative decoding: try it, serve it, benchmark it, prove it lossless.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("generate")(generate.generate)
app.command("serve")(serve.serve)
app.command("doctor")(doctor.doctor)
app.add_typer(models.app, name="models")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run a command; an error of ours is one line on standard error and exit status 1."""
    try:
        app()
    except DDTreeError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
