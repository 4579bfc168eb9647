"""At which clock was a recorded time sampled: that after a rest, or that of a sustained load?"""

import pytest
from hbmeter.experiments import samples
from hbmeter.simulator.time_model import seconds_since_rest


@pytest.mark.parametrize(("begun", "expected"), [
    (0.0, 0.01), (0.04, 0.01), (0.045, 0.005 + 0.006), (0.05, 0.012), (9.0, 0.012)])
def test_a_call_is_at_the_first_clock_until_that_ends(begun, expected):
    assert seconds_since_rest(0.01, 0.012, 0.05, begun) == pytest.approx(expected)


def test_a_long_call_after_a_rest_meets_both_clocks():
    assert seconds_since_rest(1.0, 1.2, 0.05) == pytest.approx(0.05 + 0.95 * 1.2)
    assert seconds_since_rest(1.0, 1.2, 0.0) == 1.2


@pytest.mark.parametrize(("call_s", "expected"), [
    (0.003, 0.003),  # 13 calls in 39 ms
    (0.02, 0.024),  # three to warm up, then all is sustained
    (0.007, 0.0083),  # one of the middle two meets both clocks
])
def test_of_ten_samples_after_three_calls_the_median_counts(call_s, expected):
    ten = samples.of("tiles", True, call_s)
    assert len(ten) == 10 and ten[0] == (3, 1)
    assert samples.end_s(ten, call_s) == pytest.approx(13 * call_s)
    assert samples.median_s(ten, call_s, 1.2 * call_s, 0.05) == pytest.approx(expected)


def test_short_calls_in_batches_are_sampled_at_the_first_clock():
    batches = samples.of("held out h200", False, 1e-4)
    assert batches == [(2, 25), (27, 25)]
    assert samples.end_s(batches, 1e-4) < 0.03
    assert samples.median_s(batches, 1e-4, 2e-4, 0.05) == pytest.approx(1e-4)
