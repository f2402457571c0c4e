"""Writing text so that a reader never sees half a file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from memx_engine import OutputError


def write_text(file: Path, text: str, *, overwrite: bool = False) -> Path:
    """Write ``text`` to a temporary file beside ``file``, then rename it into place.

    Args:
        file: Where to write; its folder is created.
        text: The whole content.
        overwrite: Replace an existing file.

    Returns:
        The absolute path written.

    Raises:
        OutputError: The file exists (without ``overwrite``), is a folder, or the system refuses the write.
    """
    target = file.expanduser().absolute()
    if target.is_dir():
        raise OutputError("this is a folder", where=str(target), hint="add a file name")
    temporary: str | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes private files; what the operator saves gets the permissions of any new file of theirs.
        os.chmod(temporary, target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
        if overwrite:
            os.replace(temporary, target)
        else:
            # A hard link fails when the target exists, so no other writer can slip in between check and rename.
            _link_new(Path(temporary), target)
    except FileExistsError as error:
        raise OutputError("a file is there already", where=str(target), hint="confirm to replace it") from error
    except OSError as error:
        raise OutputError(
            f"cannot be written: {error.strerror or error}",
            where=str(target),
            hint="choose a folder that you may write to",
        ) from error
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
    return target


def write_new(file: Path, text: str) -> Path:
    """As :func:`write_text`, under the next free name where there is a file already: ``plan.yaml``, ``plan-2.yaml``."""
    for number in range(1, 1000):
        target = file if number == 1 else file.with_name(f"{file.stem}-{number}{file.suffix}")
        if not target.exists():
            return write_text(target, text)
    raise OutputError("a thousand files of this name are there", where=str(file), hint="e saves under another name")


def _link_new(temporary: Path, target: Path) -> None:
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:
        # Some file systems have no hard links.
        if target.exists():
            raise FileExistsError(str(target)) from None
        os.rename(temporary, target)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
