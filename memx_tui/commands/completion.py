"""``memx-tui completion``: the completion script of a shell."""

from __future__ import annotations

import click

from memx_tui.output import emit

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def command(*, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash  source <(memx-tui completion bash)
    zsh   source <(memx-tui completion zsh)
    fish  memx-tui completion fish | source
    """
    from click.shell_completion import get_completion_class

    from memx_tui.cli import PROG, cli

    completer = get_completion_class(shell)
    assert completer is not None
    instance = completer(cli, {}, PROG, "_MEMX_TUI_COMPLETE")
    # Not instance.source(): for bash that starts a bash to ask for its version, which may not even be installed here.
    emit(instance.source_template % instance.source_vars())
