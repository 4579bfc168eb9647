"""Does the fast line cache equal a dictionary LRU, and does its race check what it counts?"""

import json
import sys
from collections import OrderedDict

import numpy as np
import pytest
from hbmeter.experiments import bench_peers, cli
from hbmeter.kernels.errors import Unavailable
from hbmeter.simulator.engines import lru_lines
from hbmeter.simulator.errors import InputError
from hypothesis import given, settings
from hypothesis import strategies as st

RUNS = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 300), st.integers(1, 15)),
                max_size=40)


def as_runs(runs):
    return np.array(runs, lru_lines.RUN)


def dictionary_lru(runs, n_sets):
    """Sectors that hit, by an OrderedDict a set."""
    sets, hits = [OrderedDict() for _ in range(n_sets)], 0
    for first, lines, sectors in runs:
        for line in range(first, first + lines):
            ways = sets[line % n_sets]
            valid = ways.pop(line, 0)
            hits += (valid & sectors).bit_count()
            if len(ways) == lru_lines.WAYS:
                ways.popitem(last=False)
            ways[line] = valid | sectors
    return hits


@settings(max_examples=100, deadline=None)
@given(RUNS, st.integers(1, 300))
def test_the_line_cache_is_a_dictionary_lru(runs, n_sets):
    assert lru_lines.LineCache(n_sets).read(as_runs(runs)) == dictionary_lru(runs, n_sets)


def test_a_cache_keeps_what_it_read_in_an_earlier_call():
    cache = lru_lines.LineCache(10)
    assert cache.read(as_runs([(5, 100, 3)])) == 0
    assert cache.read(as_runs([(5, 100, 15)])) == 200
    assert cache.read(as_runs([(5, 100, 15)])) == 400


@pytest.mark.parametrize(("runs", "text"), [
    ([(-1, 2, 15)], "lines must be from 0"),
    ([(2**40, 2, 15)], "lines must be from 0"),
    ([(0, 2, 0)], "sectors must be bits from 1 to 15"),
    ([(0, 2, 16)], "sectors must be bits from 1 to 15"),
])
def test_what_a_word_cannot_hold_is_refused(runs, text):
    with pytest.raises(InputError, match=text):
        lru_lines.LineCache(4).read(as_runs(runs))


def test_a_cache_without_sets_is_refused():
    with pytest.raises(InputError, match="0 sets holds nothing"):
        lru_lines.LineCache(0)


# ---- The race ----


def test_the_traces_have_the_hits_that_they_should():
    tiles, stream = bench_peers.tiles(), bench_peers.stream()
    lines, matrices = int(tiles["lines"].sum()), 4 * 8192 * 2
    assert lines == int(stream["lines"].sum()) == 2_129_920
    assert bench_peers._hbmeter(tiles)() == lines - matrices  # all four stay
    assert bench_peers._hbmeter(stream)() == 0


@pytest.mark.parametrize("trace", bench_peers.TRACES)
def test_the_same_loops_in_c_count_the_same(trace):
    runs = bench_peers.TRACES[trace]()[:20_000]
    try:
        in_c = bench_peers._in_c(runs)
    except Unavailable as error:
        pytest.skip(str(error))
    assert in_c() == bench_peers._hbmeter(runs)()


def test_wrong_hits_are_told():
    rows = [{"trace": "tiles", "contender": name, "hits": hits}
            for name, hits in ((bench_peers.OURS, 5), ("other", 6), ("absent", None))]
    assert bench_peers.wrong(rows) == ["tiles: hits differ: {'hbmeter': 5, 'other': 6}"]
    assert bench_peers.wrong(rows[:1]) == []


def test_the_race_needs_no_peer(capsys, monkeypatch):
    monkeypatch.setattr(bench_peers, "ROUNDS", 1)
    monkeypatch.setattr(bench_peers, "SAMPLE_SECONDS", 0)
    runs = bench_peers.tiles()[:50]
    monkeypatch.setattr(bench_peers, "TRACES", {"tiles": lambda: runs})
    for name in ("cachesim", "libcachesim"):
        monkeypatch.setitem(sys.modules, name, None)
    assert cli.main(["bench", "--peers", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {row["contender"]: row for row in document["rows"]}
    assert set(rows) == set(bench_peers.CONTENDERS)
    assert rows["libCacheSim"]["why_not"] == "libCacheSim is not installed"
    assert rows[bench_peers.OURS]["hits"] == 0 and rows[bench_peers.OURS]["seconds"]
    assert document["bars"]["over pycachesim's bulk call"]["measured"] is None
    assert cli.main(["bench", "--peers"]) == 0
    assert "pycachesim is not installed" in capsys.readouterr().out
