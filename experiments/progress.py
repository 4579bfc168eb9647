"""How far long work is, for people at a terminal."""

import time


class Progress:
    """A line that says how far a stage is and how long it will take, on a terminal only."""

    def __init__(self, stream):
        self.stream, self.shown = stream, stream.isatty()
        self.start("", 0)

    def start(self, stage: str, total: int) -> None:
        """A stage of ``total`` points begins."""
        self.stage, self.total, self.began = stage, total, time.monotonic()

    def step(self, number: int, point) -> None:
        """Point ``number`` (from 0) begins."""
        if not self.shown:
            return
        spent = time.monotonic() - self.began
        left = f", about {spent / number * (self.total - number):.0f} s left" if number else ""
        text = f"{self.stage}: {number + 1} of {self.total}{left}: {point}"
        print(f"\r\033[K{text[:110]}", end="", file=self.stream, flush=True)

    def note(self, text: str) -> None:
        """Something to know, on every kind of stream."""
        self.end()
        print(f"hbmeter: {text}", file=self.stream, flush=True)

    def end(self) -> None:
        """Clear the line."""
        if self.shown:
            print("\r\033[K", end="", file=self.stream, flush=True)
