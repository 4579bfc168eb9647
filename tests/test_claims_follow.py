"""Does a verdict change when the simulator does? Each claim is judged by a model that takes one
schedule or method for another; its facts are gathered anew."""

from functools import partial

import pytest
from hbmeter.experiments import claims
from hbmeter.experiments.claims import long_context, softmax_passes


def taking(true, names):
    """``true(name, …)`` with the name, wherever it stands, taken for another."""
    def mistaken(*arguments, **options):
        return true(*(names.get(a, a) if isinstance(a, str) else a for a in arguments), **options)

    return mistaken


SWAPPED = (
    (softmax_passes.schedules, "build", {"softmax_online": "softmax_safe"}),
    (softmax_passes.schedules, "build", {"softmax_safe": "softmax_online"}),
    (long_context, "activations", {"flash": "standard"}),
)
JUDGED = {softmax_passes.schedules: "softmax_passes", long_context: "long_context"}


@pytest.mark.parametrize(("home", "name", "names"), SWAPPED,
                         ids=["online as safe", "safe as online", "flash as standard"])
def test_a_model_that_takes_one_for_another_gives_another_verdict(home, name, names, monkeypatch):
    judge = partial(claims.judged, JUDGED[home])
    before = judge().verdict_words
    monkeypatch.setattr(home, name, taking(getattr(home, name), names))
    assert judge().verdict_words != before
