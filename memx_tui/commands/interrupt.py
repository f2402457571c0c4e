"""Ctrl-C, and what a scheduler or a closed terminal sends, as a request to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C, SIGTERM or SIGHUP into a request to stop; a second one ends the process at once.

    What is ignored stays ignored: under ``nohup`` a closed terminal stops nothing.
    """
    stop = threading.Event()
    previous = {number: signal.getsignal(number) for number in ASKING}
    caught = [number for number, handler in previous.items() if handler is not signal.SIG_IGN]

    def request(signum: int, frame: object) -> None:
        stop.set()
        for number in caught:
            signal.signal(number, signal.default_int_handler)

    if not caught or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    for number in caught:
        signal.signal(number, request)
    try:
        yield stop
    finally:
        for number in caught:
            signal.signal(number, previous[number])
