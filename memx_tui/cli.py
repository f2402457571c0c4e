"""The entry point ``memx-tui``: finds the verb, runs it, and turns every outcome into an exit code and one message.

Nothing heavy is imported here: ``--help`` and ``--version`` must not wait for numpy or Textual.
"""

from __future__ import annotations

import keyword
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

from memx_engine import MemxError, __version__
from memx_tui.commands.options import compute_options, input_options, job_options
from memx_tui.output import ReaderGoneError, let_go_of_dead_streams, say, silence_stdout

PROG = "memx-tui"
EXIT_INTERNAL = 1
EXIT_INPUT = 2
EXIT_INTERRUPTED = 130

VERBS = {
    "plan": "Search for the best plans of a cluster and a model.",
    "profile": "Measure what the plans rest on, on one device of each type.",
    "import": "Read measurement tables (CSV) and Megatron logs into a workspace.",
    "train": "Learn a predictor from a workspace, and say how good it is.",
    "explain": "Judge one plan: does it fit, what does it cost, why.",
    "compare": "Put two to four plan files side by side.",
    "show": "Show a plan file as the dashboard does.",
    "evaluate": "Judge the predictions on measured runs.",
    "doctor": "Check the installation, the terminal and the folders.",
    "paths": "Say where configuration, state and the log are kept.",
    "themes": "List the dashboard's themes.",
    "completion": "Print the completion script of a shell.",
}


class VerbGroup(click.Group):
    """Finds a verb's module only when the verb is used; the list of verbs needs none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        # The module of a verb that is a Python keyword has a trailing underscore.
        module = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        command: click.Command = import_module(f"memx_tui.commands.{module}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in VERBS and not args[0].startswith("-"):
            import difflib

            close = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"verbs: {', '.join(VERBS)}"
            raise click.UsageError(f"no verb is called {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_text(
                "0 done, 1 internal error, 2 bad input, 3 no feasible plan, 4 profiling failed, 130 interrupted"
            )
        with formatter.section("Start with"):
            formatter.write_text("memx-tui plan --cluster paper-20gpu --model llama2-7b -o plan.yaml")


@click.group(
    cls=VerbGroup,
    invoke_without_command=True,
    subcommand_metavar="[VERB] ...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "--version", prog_name=PROG, message="%(prog)s %(version)s")
@click.option("--theme", metavar="NAME", help="Theme to start with; see: memx-tui themes.")
@click.option("--fresh", is_flag=True, help="Ignore the last session.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII only.")
@click.option("--no-mouse", is_flag=True, help="Leave the mouse to the terminal.")
@input_options
@job_options()
@compute_options
@click.pass_context
def cli(ctx: click.Context, /, **options: Any) -> None:
    """Plan large-model training on clusters of different GPUs.

    Without a verb the dashboard opens; the options below are the dashboard's. Each verb has its own --help.
    """
    if ctx.invoked_subcommand is None:
        from memx_tui.commands.dashboard import run_dashboard

        run_dashboard(options)
        return
    given = [name for name in options if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if given:
        flags = ", ".join(p.opts[0] for p in ctx.command.params if p.name in given)
        verb = ctx.invoked_subcommand
        raise click.UsageError(
            f"{flags} stands before the verb and would set the dashboard; put it after {verb!r}", ctx
        )


def main() -> NoReturn:
    """Run ``memx-tui`` with the process's arguments and exit."""
    if not sys.stdout:
        # Closed by the shell (>&-): a stream that cannot be written says so in words where something is printed.
        sys.stdout = open(os.devnull, encoding="utf-8")  # lives until the process ends
    code = run(sys.argv[1:])
    let_go_of_dead_streams()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run ``memx-tui`` and return its exit code; messages for people go to standard error, never a traceback."""
    try:
        code = cli.main(args=list(arguments), prog_name=PROG, standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (ReaderGoneError, BrokenPipeError):
        silence_stdout()
        return 0
    except MemxError as error:
        say(f"{PROG}: {error}")
        return error.exit_code
    except click.ClickException as error:
        say(_usage_message(error))
        return EXIT_INPUT
    except (click.Abort, KeyboardInterrupt):
        say(f"{PROG}: interrupted")
        return EXIT_INTERRUPTED
    except SystemExit as error:
        # click leaves this way when the pipe behind --help is closed.
        silence_stdout()
        return 0 if error.code == 1 else int(error.code or 0)
    except MemoryError:
        say(f"{PROG}: out of memory; nothing was written")
        return EXIT_INTERNAL
    except Exception as error:  # the outermost edge: logged in full, shown as one line
        return _internal(error)


def _usage_message(error: click.ClickException) -> str:
    """A usage error as one clear line, with the help to ask for."""
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else PROG
    text = " ".join(error.format_message().split()).rstrip(".")
    return f"{path}: {text[:1].lower()}{text[1:]}\n  see: {path} --help"


def _internal(error: Exception) -> int:
    import logging

    from memx_tui.logs import start_logging
    from memx_tui.paths import find_paths

    logger = logging.getLogger("memx_tui")
    problem = None
    if not logger.handlers:
        problem = start_logging(find_paths().log_file)
    logger.error("internal error", exc_info=error)
    files = [Path(h.baseFilename) for h in logger.handlers if isinstance(h, logging.FileHandler)]
    first = str(error).splitlines()[0][:200] if str(error) else "no message"
    place = f"details are in {files[0]}" if files else f"and {problem}" if problem else "no log could be written"
    say(f"{PROG}: internal error, {type(error).__name__}: {first}; {place}")
    return EXIT_INTERNAL


if __name__ == "__main__":
    main()
