"""A sign of life on a terminal, for whatever takes longer than a second.

A room of its own because it must never be seen by a script: it is drawn on stderr only where that is a terminal, from a
thread, and is gone before anything else is written.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time

PATIENCE_S = 1.0
EVERY_S = 0.2
SIGNS = "-\\|/"
CLEAR = "\r\x1b[K"


class Waiting:
    """Draws `- lift 3 s` after a second, until `end`; `clear` takes it away for what is written in between."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._is_drawn = False

    def begin(self, name: str) -> None:
        """Start to wait for the command `name`."""
        self._done.clear()
        threading.Thread(target=self._draw, args=(name, self._done), daemon=True).start()

    def clear(self) -> None:
        """Take the sign away; it comes back with its next turn."""
        with self._lock:
            if self._is_drawn:
                self._write(CLEAR)
                self._is_drawn = False

    def end(self) -> None:
        """Take the sign away for good."""
        self._done.set()
        self.clear()

    def _draw(self, name: str, done: threading.Event) -> None:
        start, turn = time.monotonic(), 0
        wait = PATIENCE_S
        while not done.wait(wait):
            with self._lock:
                if done.is_set():
                    return
                self._write(f"{CLEAR}{SIGNS[turn % len(SIGNS)]} {name} {time.monotonic() - start:.0f} s")
                self._is_drawn = True
            turn, wait = turn + 1, EVERY_S

    @staticmethod
    def _write(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


waiting = Waiting()
