"""Lists of whole numbers as they are typed, on the command line and in the dashboard."""

from __future__ import annotations

from memx_engine import InputError

MAX_SIZE = 1_000_000


def parse_amounts(text: str) -> tuple[int, ...]:
    """A comma-separated list of whole numbers without repeats; what they may be is checked where they are used.

    Raises:
        InputError: This is no such list.
    """
    try:
        return tuple(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        raise InputError(f"{text[:60]!r} is not a list of whole numbers, such as 256,512") from None


def parse_sizes(text: str) -> tuple[int, ...]:
    """A comma-separated list of whole numbers from 1 to a million, without repeats.

    Raises:
        InputError: This is no such list.
    """
    try:
        numbers = parse_amounts(text)
    except InputError:
        numbers = ()
    if not numbers or min(numbers) < 1 or max(numbers) > MAX_SIZE:
        raise InputError(f"{text[:60]!r} is not a list of whole numbers of at least 1, such as 1,2,4")
    return numbers
