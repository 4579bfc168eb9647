"""How far long work is, for people at a terminal."""

import sys
import threading
import time

BAR_CHARS = 24
BAR_SECONDS = 0.2  # from one drawing of the bar to the next
PATIENCE_SECONDS = 2  # that work takes before its share is said
BEAT_SECONDS = 0.5


class Progress:
    """A line that says how far a stage is and how long it will take, on a terminal only."""

    drawn_at = 0.0  # when any of them last drew its line

    def __init__(self, stream):
        self.stream, self.shown = stream, stream.isatty()
        self.start("", 0)

    def start(self, stage: str, total: int) -> None:
        """A stage of ``total`` points begins."""
        self.stage, self.total, self.began = stage, total, time.monotonic()
        self.drawn = -BAR_SECONDS

    def step(self, number: int, point) -> None:
        """Point ``number`` (from 0) begins."""
        if not self.shown:
            return
        spent = time.monotonic() - self.began
        left = f", about {spent / number * (self.total - number):.0f} s left" if number else ""
        self._draw(f"{self.stage}: {number + 1} of {self.total}{left}: {point}")

    def done(self, number: int) -> None:
        """``number`` points are done, many a second: a bar with their rate and the time left."""
        spent = time.monotonic() - self.began
        if not self.shown or not self.total or spent - self.drawn < BAR_SECONDS:
            return
        self.drawn = spent
        filled = BAR_CHARS * number // self.total
        bar = "#" * filled + "." * (BAR_CHARS - filled)
        text = f"{self.stage} [{bar}] {number:,} of {self.total:,}"
        if number:
            rate = number / spent
            text += f", {rate:.3g} a second, {_duration((self.total - number) / rate)} left"
        self._draw(text)

    def _draw(self, text: str) -> None:
        Progress.drawn_at = time.monotonic()
        print(f"\r\033[K{text[:110]}", end="", file=self.stream, flush=True)

    def share(self, done: float) -> None:
        """A share of a stage is done; said once the stage has taken PATIENCE_SECONDS."""
        spent = time.monotonic() - self.began
        if not self.shown or spent < max(PATIENCE_SECONDS, self.drawn + BAR_SECONDS):
            return
        self.drawn = spent
        left = f", about {_duration(spent / done - spent)} left" if done else ""
        self._draw(f"{self.stage}: {done:.0%}{left}")

    def note(self, text: str) -> None:
        """Something to know, on every kind of stream."""
        self.end()
        print(f"hbmeter: {text}", file=self.stream, flush=True)

    def end(self) -> None:
        """Clear the line."""
        if self.shown:
            print("\r\033[K", end="", file=self.stream, flush=True)


class Heartbeat:
    """Says on a terminal that a command is at work, when neither it nor its Progress has said
    anything for PATIENCE_SECONDS. The line goes when the command prints its answer."""

    def __init__(self, command: str):
        self.command, self.stream, self.stdout = command, sys.stderr, sys.stdout
        self._stopped, self._thread = threading.Event(), None
        self._answer = _Answer(self)  # kept: print() may still hold it when it is replaced

    def __enter__(self):
        if self.stream.isatty():
            sys.stdout = self._answer
            self._thread = threading.Thread(target=self._beat, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self) -> None:
        """No more of it; its line is cleared."""
        if self._thread is None or self._stopped.is_set():
            return
        self._stopped.set()
        self._thread.join()
        sys.stdout = self.stdout

    def _beat(self):
        began, line = time.monotonic(), False
        while not self._stopped.wait(BEAT_SECONDS):
            now = time.monotonic()
            if now - max(began, Progress.drawn_at) > PATIENCE_SECONDS:
                print(f"\r\033[Khbmeter {self.command}: at work for {_duration(now - began)}\r",
                      end="", file=self.stream, flush=True)
                line = True
        if line:
            print("\033[K", end="", file=self.stream, flush=True)


class _Answer:
    """Standard output that stops a Heartbeat when something is written to it."""

    def __init__(self, heartbeat: Heartbeat):
        self._heartbeat = heartbeat

    def __getattr__(self, name):
        self._heartbeat.stop()
        return getattr(self._heartbeat.stdout, name)


def _duration(seconds: float) -> str:
    """42 s, 3 min 20 s, 2 h 5 min."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
