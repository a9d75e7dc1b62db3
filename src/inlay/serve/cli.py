"""The command line: `inlay serve`, `up`, `chat`, `doctor`, `plan`, `convert`, `store` and more.

Only this module knows about exit codes and error lines: 0 done, 1 an `InlayError`, 2 wrong usage,
130 interrupted. Each command lives in `serve.commands` and imports what is heavy when it runs, so
that `inlay --help` answers at once.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from inlay import __version__
from inlay.core.errors import ConfigError, InlayError
from inlay.core.log import LogConfig, configure_logging, parse_log_setting
from inlay.core.openmp import let_openmp_sleep
from inlay.core.settings import read_settings
from inlay.serve.commands.bench_serve import bench_serve
from inlay.serve.commands.bench_store import bench_store
from inlay.serve.commands.bench_transfer import bench_transfer
from inlay.serve.commands.calibrate import calibrate
from inlay.serve.commands.chat import chat
from inlay.serve.commands.convert import convert
from inlay.serve.commands.doctor import doctor
from inlay.serve.commands.down import down
from inlay.serve.commands.drain import drain
from inlay.serve.commands.generate import generate
from inlay.serve.commands.migrate import migrate
from inlay.serve.commands.plan import plan
from inlay.serve.commands.role import role
from inlay.serve.commands.scale import scale
from inlay.serve.commands.serve import serve
from inlay.serve.commands.simulate import simulate
from inlay.serve.commands.status import status
from inlay.serve.commands.store_drain import store_drain
from inlay.serve.commands.store_master import store_master
from inlay.serve.commands.store_node import store_node
from inlay.serve.commands.store_objects import store_explain, store_get, store_put, store_rm
from inlay.serve.commands.store_status import store_status
from inlay.serve.commands.trace_check import trace_check
from inlay.serve.commands.trace_draw import trace_draw
from inlay.serve.commands.tune import tune_commands
from inlay.serve.commands.up import up
from inlay.serve.commands.weights_publish import weights_publish
from inlay.serve.commands.weights_pull import weights_pull
from inlay.serve.commands.weights_watch import weights_watch

EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


def _show_version(wanted: bool) -> None:
    """Print the version and end, for `--version`."""
    if wanted:
        print(f"inlay {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Inlay serves large language models on mixed hardware.

    Every command works without a MODEL: it then takes the small demo model that comes with Inlay.
    """


def build_app() -> typer.Typer:
    """The commands, each under its name."""
    app = typer.Typer(
        name="inlay",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    app.command("serve")(serve)
    app.command("chat")(chat)
    app.command("generate")(generate)
    app.command("doctor")(doctor)
    app.command("convert")(convert)
    app.command("migrate")(migrate)
    app.command("plan")(plan)
    app.command("simulate")(simulate)
    app.command("up")(up)
    app.command("status")(status)
    app.command("scale")(scale)
    app.command("drain")(drain)
    app.command("role")(role)
    app.command("down")(down)
    app.command("calibrate")(calibrate)
    trace = typer.Typer(no_args_is_help=True, help="Check and draw traces of requests.")
    trace.callback()(lambda: None)
    trace.command("check")(trace_check)
    trace.command("draw")(trace_draw)
    app.add_typer(trace, name="trace")
    store = typer.Typer(no_args_is_help=True, help="Run and ask the store of KV blocks.")
    store.callback()(lambda: None)
    store.command("master")(store_master)
    store.command("node")(store_node)
    store.command("status")(store_status)
    store.command("get")(store_get)
    store.command("put")(store_put)
    store.command("rm")(store_rm)
    store.command("explain")(store_explain)
    store.command("drain")(store_drain)
    app.add_typer(store, name="store")
    weights = typer.Typer(no_args_is_help=True, help="Move a model's weights between peers.")
    weights.callback()(lambda: None)
    weights.command("publish")(weights_publish)
    weights.command("pull")(weights_pull)
    weights.command("watch")(weights_watch)
    app.add_typer(weights, name="weights")
    bench = typer.Typer(no_args_is_help=True, help="Measure a server, a store, or transfers.")
    bench.callback()(lambda: None)
    bench.command("serve")(bench_serve)
    bench.command("store")(bench_store)
    bench.command("transfer")(bench_transfer)
    app.add_typer(bench, name="bench")
    app.add_typer(tune_commands(), name="tune")
    return app


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    sys.exit(run(args))


def run(args: Sequence[str] | None = None) -> int:
    """Run the command line; every expected failure becomes one line on stderr and a code."""
    log = LogConfig()
    let_openmp_sleep()
    try:
        log = parse_log_setting(read_settings().log)
        configure_logging(log)
        code = build_app()(
            args=list(args) if args is not None else None,
            prog_name="inlay",
            standalone_mode=False,
        )
        sys.stdout.flush()
        return int(code or 0)
    except InlayError as error:
        usage = isinstance(error, ConfigError)
        return _fail(str(error), EXIT_USAGE if usage else EXIT_ERROR, log, error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left, as `head` does. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    except typer.Abort:
        return EXIT_INTERRUPTED
    except Exception as error:
        return _explain(error, log)


def _explain(error: Exception, log: LogConfig) -> int:
    """Exit code and line of errors that are not ours: wrong usage, the system, a bug."""
    describe = getattr(error, "format_message", None)
    if describe is not None:  # wrong usage, found by Typer
        message = " ".join(str(describe()).split())
        if not message:  # no arguments: the help is already on the screen
            return EXIT_USAGE
        return _fail(message, int(getattr(error, "exit_code", EXIT_USAGE)), log, error)
    if isinstance(error, OSError) and error.filename is not None:
        return _fail(f"{error.filename}: {error.strerror}", EXIT_ERROR, log, error)
    message = f"{type(error).__name__}: {error}"
    hint = "" if log.debug else " (a bug in Inlay; INLAY_LOG=debug shows where)"
    return _fail(message + hint, EXIT_ERROR, log, error)


def _fail(message: str, code: int, log: LogConfig, error: Exception) -> int:
    """Write the error line, and with INLAY_LOG=debug where it came from."""
    if log.debug:
        traceback.print_exception(error)
    sys.stdout.flush()
    # One line; only an engine that could not start adds the end of its log below.
    first, *log_lines = message.strip().splitlines() or [type(error).__name__]
    print(f"inlay: error: {first}", file=sys.stderr)
    for line in log_lines:
        print(f"  {line}", file=sys.stderr)
    return code
