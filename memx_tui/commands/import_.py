"""``memx-tui import``: measurement tables and training logs into a workspace, and back out as tables."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memx_engine import InputError, MemxError, OutputError
from memx_tui.commands.interrupt import stop_on_interrupt
from memx_tui.commands.options import start_work
from memx_tui.commands.plan import refuse_unwritable
from memx_tui.output import emit, emit_json, say
from memx_tui.paths import find_paths

if TYPE_CHECKING:
    from memx_engine import FileImport, Workspace

KINDS = ("iteration", "layer", "measured")


@click.command()
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option("--gpu-type", metavar="NAME", help="What a log's run used; tables say it themselves.")
@click.option(
    "--export",
    "output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write what the workspace holds as CSV, after any import; - is standard output.",
)
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default="iteration",
    show_default=True,
    help="What --export writes: imported iterations, imported layers, or measured points as layers.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.option(
    "--workspace", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Folder to import into."
)
def command(
    *,
    files: tuple[str, ...],
    gpu_type: str | None,
    output: Path | None,
    kind: str,
    force: bool,
    as_json: bool,
    workspace: Path | None,
) -> None:
    """Read measurement tables (CSV) and Megatron-LM logs into a workspace; plan with it to use them.

    Rows that cannot be read are listed by line with the reason; the others are imported, each once. Rows whose
    model or layout the cost model does not cover are kept and listed too. Exits 2 only when nothing could be read.

    \b
    memx-tui import runs.csv train.log --gpu-type a100-sxm-80g --workspace my-runs
    memx-tui plan --cluster my.yaml --model llama2-7b --workspace my-runs
    memx-tui import --export back.csv --workspace my-runs
    """
    if not files and output is None:
        raise InputError("is needed", where="FILE", hint="a CSV table or a Megatron-LM log, or --export to write one")
    if files.count("-") > 1:
        raise InputError("standard input can be read only once", where="-")
    to_stdout = output is not None and str(output) == "-"
    if to_stdout and files:
        raise InputError("would mix with the summary", where="--export -", hint="export in a command of its own")
    if not to_stdout:
        refuse_unwritable(output, force)
    folder = workspace or find_paths().imported
    if files:
        _import(files, folder, given=workspace, gpu_type=gpu_type, as_json=as_json)
    if output is not None:
        _export(folder, kind, output)


def _import(files: tuple[str, ...], folder: Path, *, given: Path | None, gpu_type: str | None, as_json: bool) -> None:
    from memx_engine import Workspace, import_document

    start_work(given, None)
    with Workspace(folder) as store, stop_on_interrupt() as stop:
        for notice in store.notices:
            say(f"memx-tui: {notice}")
        made = [_import_one(name, store, gpu_type, stop.is_set) for name in files]
    if as_json:
        emit_json(import_document(made, folder))
    else:
        from memx_tui.text.import_view import import_text
        from memx_tui.text.style import Style

        emit(import_text(made, folder, given is None, Style.of(sys.stdout)))
    if not any(each.kept for each in made):
        raise InputError(
            "nothing could be read",
            where=", ".join(files[:5]) + (", ..." if len(files) > 5 else ""),
            hint="the summary on standard output says why, file by file",
        )


def _import_one(name: str, store: Workspace, gpu_type: str | None, should_stop: Callable[[], bool]) -> FileImport:
    """One file's summary; a file that cannot be read at all does not keep the others from being read."""
    from memx_engine import CancelledError, FileImport, StorageError, import_file

    shown = "standard input" if name == "-" else Path(name).name

    def report(rows: int) -> None:
        say(f"memx-tui: {shown}: {rows:,} rows read")

    try:
        with _on_disk(name) as path:
            # Only tables that take a while report; smaller ones are over before the line would be read.
            made = import_file(
                path, store, gpu_type=gpu_type, on_progress=_now_and_then(report), should_stop=should_stop
            )
    except (CancelledError, StorageError):
        raise
    except MemxError as error:
        message = str(error) if name != "-" else f"standard input: {error.message}"
        return FileImport(shown, error=message)
    made.source = shown
    return made


def _now_and_then(report: Callable[[int], None], every: int = 100_000) -> Callable[[int], None]:
    def tell(rows: int) -> None:
        if rows and rows % every == 0:
            report(rows)

    return tell


@contextmanager
def _on_disk(name: str) -> Iterator[Path]:
    """The path of ``name``; standard input is copied to a temporary file, as it cannot be read twice."""
    if name != "-":
        yield Path(name)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stdin"
        with path.open("wb") as target:
            shutil.copyfileobj(sys.stdin.buffer, target)
        yield path


def _export(folder: Path, kind: str, output: Path) -> None:
    from memx_engine import Workspace, export_table

    with Workspace(folder, read_only=True) as store:
        if str(output) == "-":
            count = export_table(store, kind, sys.stdout)
            sys.stdout.flush()
        else:
            count = _write(output, lambda stream: export_table(store, kind, stream))
    say(f"memx-tui: {count:,} rows ({kind}) written" + ("" if str(output) == "-" else f" to {output}"))


def _write(output: Path, write: Callable[..., int]) -> int:
    """Write to a temporary file beside ``output`` and rename it, so that nobody reads half a table."""
    target = output.absolute()
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            count = write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", where=f"--export {output}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)
    return count
