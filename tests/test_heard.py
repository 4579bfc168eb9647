"""Is work in threads heard: results in order, and an end when one fails or nobody listens?"""

from time import sleep

import pytest
from hbmeter.simulator.engines.heard import side_by_side


def endless(go_on):
    while True:
        go_on(0.0)
        sleep(0.001)


def test_results_come_in_the_order_of_the_items():
    def work(item, go_on):
        sleep(0.002 * (5 - item))
        return item * item

    assert list(side_by_side(work, range(5))) == [0, 1, 4, 9, 16]


def test_when_one_fails_the_others_end():
    def work(item, go_on):
        if item == 0:
            raise ValueError("it failed")
        endless(go_on)

    with pytest.raises(ValueError, match="it failed"):
        list(side_by_side(work, range(3)))


def test_when_nobody_listens_they_end():
    def work(item, go_on):
        return item if item == 0 else endless(go_on)

    results = side_by_side(work, range(3))
    assert next(results) == 0
    results.close()
