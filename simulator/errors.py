"""The one exception for bad input: its text is what the user reads."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Input that cannot be used; the message names the option, its value and what is right.

    >>> from hbmeter.simulator import Attention
    >>> Attention(seq=0)
    Traceback (most recent call last):
        ...
    hbmeter.simulator.errors.InputError: seq 0 must be a whole number from 1
    """


def unknown_name(kind: str, name: str, valid: Iterable[str]) -> InputError:
    """An InputError for a name that is not in ``valid``, with the nearest one suggested."""
    valid = sorted(valid)
    near = difflib.get_close_matches(str(name), valid, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return InputError(f"unknown {kind} {name!r}{hint} (valid: {', '.join(valid)})")
