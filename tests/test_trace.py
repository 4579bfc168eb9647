"""Is a timeline well-formed, is all in it that was counted, and does noting change no count?"""

import json
from itertools import pairwise

import numpy as np
import pytest
from hbmeter.experiments import trace_events
from hbmeter.experiments.cli import main
from hbmeter.hwprofiles import load
from hbmeter.simulator import Attention, Tiles, schedules
from hbmeter.simulator.engines import l2
from hbmeter.simulator.engines.l2_log import EVENT, START, STOP, Log
from hbmeter.simulator.point import traffic

TILES = Tiles(64, 64, 2)
SHAPES = {
    "flash2": Attention(1, 8, 1000, 64, mask="causal"),
    "standard": Attention(1, 2, 320, 64),
    "flash1": Attention(1, 3, 256, 32, kv_heads=1),
    "flash2_backward": Attention(1, 2, 256, 64, direction="backward"),
    "split_kv": Attention(2, 8, 1, 64, kv_heads=2, kv_seq=700),
}
SIZES = {"X": {"ph", "name", "pid", "tid", "ts", "dur", "args"},
         "C": {"ph", "name", "pid", "tid", "ts", "args"},
         "M": {"ph", "name", "pid", "tid", "ts", "args"}}


def small_gpu():
    """An H200 with 8 SMs and an L2 of 1 MiB, which holds no problem here."""
    gpu = load("h200")
    cache = gpu.l2.model_copy(update={"size_bytes": 1 << 20, "sm_partitions": None,
                                      "dirty_bytes_max": None})
    return gpu.model_copy(update={"sm_count": 8, "l2": cache})


def traced(schedule, size=1_000_000, **launch):
    """(point, trace, log) of a schedule on the small GPU."""
    gpu, log = small_gpu(), Log(size)
    point = traffic(schedule, SHAPES[schedule], gpu, TILES, engine="l2-tile", log=log, **launch)
    program = schedules.build(schedule, SHAPES[schedule], TILES)
    return point, trace_events.Trace(program, gpu, log.events), log


def nanoseconds(event) -> tuple[int, int]:
    return round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)


def check_format(document: dict):
    """What the Trace Event Format asks of an object with these kinds of events."""
    assert document["displayTimeUnit"] in ("ms", "ns")
    events = document["traceEvents"]
    for event in events:
        assert set(event) == SIZES[event["ph"]]
        assert isinstance(event["name"], str) and event["name"]
        assert all(isinstance(event[name], int) for name in ("pid", "tid"))
        assert event["ts"] >= 0 and event.get("dur", 0) >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
    assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= named
    assert len({tid for _, tid in named}) == len(named)
    check_nesting(events)


def check_nesting(events):
    """Slices of a track lie inside each other or follow each other, parents first."""
    tracks = {}
    for event in events:
        if event["ph"] != "X":
            continue
        begin, end = nanoseconds(event)
        around = tracks.setdefault(event["tid"], [])
        while around and around[-1] <= begin:
            around.pop()
        assert not around or end <= around[-1], event
        around.append(end)


@pytest.mark.parametrize("schedule", SHAPES)
@pytest.mark.parametrize("blocks_per_sm", [1, 2])
def test_slices_hold_every_byte_that_is_counted(schedule, blocks_per_sm):
    point, trace, log = traced(schedule, blocks_per_sm=blocks_per_sm)
    assert not log.full and trace.blocks == point["l2"]["blocks"]
    for boundary, moved in trace.moved().items():
        for kind, total in moved.items():
            assert total == point[boundary][kind], (boundary, kind)
    check_format(json.loads(trace.text({})))


@pytest.mark.parametrize("schedule", SHAPES)
def test_noting_changes_no_count(schedule):
    program = schedules.build(schedule, SHAPES[schedule], TILES)
    noted, plain = (l2.simulate(program, small_gpu(), blocks_per_sm=2, log=log)
                    for log in (Log(1_000_000), None))
    assert (noted.sectors == plain.sectors).all() and (noted.dirty == plain.dirty).all()


def test_blocks_of_a_place_follow_each_other_and_none_is_left_out():
    _, _, log = traced("flash2", blocks_per_sm=2)
    events = log.events
    for slot in np.unique(events["slot"]):
        mine = events[events["slot"] == slot]
        edges = mine[mine["kind"] < 0]
        assert (edges["kind"][::2] == START).all() and (edges["kind"][1::2] == STOP).all()
        assert (np.diff(edges["end"]) >= 0).all()
    started = events[events["kind"] == START]
    assert len({(e["head"], e["row"]) for e in started}) == len(started) == 8 * 16
    assert len(set(events["slot"].tolist())) == 16  # places on the 8 SMs


def test_launches_come_one_after_the_other_with_their_blocks_inside():
    _, trace, _ = traced("standard")
    launches = [s for s in trace.slices if s["pid"] == trace_events.LAUNCHES]
    assert [s["name"] for s in launches] == ["scores", "softmax", "output"]
    spans = [nanoseconds(launch) for launch in launches]
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    for slice in trace.slices:
        begin, end = nanoseconds(slice)
        assert any(a <= begin and end <= b for a, b in spans)


def test_what_a_block_does_fills_its_time():
    """Work, waits and stores of a block follow each other without a gap."""
    _, trace, _ = traced("flash2")
    for tid in {s["tid"] for s in trace.slices if s["pid"] == trace_events.BLOCKS}:
        mine = [s for s in trace.slices if s["tid"] == tid]
        blocks = [nanoseconds(s) for s in mine if "head" in s["args"]]
        parts = [nanoseconds(s) for s in mine if "head" not in s["args"]]
        assert sum(b - a for a, b in blocks) == sum(b - a for a, b in parts)


def test_counters_grow_to_the_bytes_of_the_slices():
    _, trace, _ = traced("flash1")
    moved = trace.moved()
    for name, boundary in (("SM boundary bytes", "sm"), ("DRAM bytes", "dram")):
        found = [event["args"] for event in trace.counters if event["name"] == name]
        for part in ("read", "write"):
            values = [args[part] for args in found]
            assert values == sorted(values) and values[-1] == moved[boundary][f"{part}_bytes"]


@pytest.mark.parametrize("size", [1, 2, 7, 100, 1001])
def test_a_full_log_is_the_beginning_of_the_run(size):
    whole, (_, trace, cut) = traced("standard")[2], traced("standard", size)
    assert cut.full and (cut.events == whole.events[:size]).all()
    assert len(trace.slices) <= size * trace_events.SLICES_OF_AN_EVENT + 3
    check_format(json.loads(trace.text({})))


def test_nothing_is_noted_beyond_a_log_that_fills_when_blocks_end():
    """Where the log ends among the last events, blocks that end find it full."""
    whole = traced("flash2")[2].used
    for size in range(whole - 40, whole + 1):
        log, room = Log(size), np.zeros(size + 64, EVENT)
        log._room, room["end"] = room[:size], -7
        traffic("flash2", SHAPES["flash2"], small_gpu(), TILES, engine="l2-tile", log=log)
        assert log.used == size and (room["end"][size:] == -7).all()


def test_the_command_writes_the_file_and_one_document(tmp_path, capsys):
    out = tmp_path / "t.json"
    shape = ["--heads", "2", "--batch", "1", "--seq", "512", "--head-dim", "64"]
    assert main(["trace", "--schedule", "flash2", *shape, "--out", str(out), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    document = json.loads(out.read_text())
    check_format(document)
    assert summary["complete"] and document["otherData"].items() <= summary.items()
    assert main(["traffic", "--schedule", "flash2", *shape, "--json"]) == 0
    point = json.loads(capsys.readouterr().out)
    assert summary["sm"] == {k: point["sm"][k] for k in ("read_bytes", "write_bytes")}
    assert summary["dram"] == {k: point["dram"][k] for k in ("read_bytes", "write_bytes")}
    assert list(tmp_path.iterdir()) == [out]


def test_a_long_run_is_cut_and_says_so(tmp_path, capsys):
    out = tmp_path / "t.json"
    assert main(["trace", "--schedule", "flash2", "--max-events", "2000", "--out", str(out)]) == 0
    assert "cut after --max-events 2,000: the grid has" in capsys.readouterr().out
    document = json.loads(out.read_text())
    check_format(document)
    assert not document["otherData"]["complete"] and out.stat().st_size < 1 << 20


@pytest.mark.parametrize("wrong", [
    ["--out", "no/such/folder/t.json"], ["--out", "."], ["--out", ""],
    ["--out", "t.json", "--max-events", "0"], ["--out", "t.json", "--max-events", "9999999999"],
    ["--out", "t.json", "--seq", "0"], ["--out", "t.json", "--blocks-per-sm", "99"],
])
def test_bad_input_is_one_line_and_no_file(wrong, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["trace", "--schedule", "flash2", *wrong]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
