"""What the L2 reader noted of a run, in Chrome's trace event format: what Perfetto opens.

Three processes: the launches, with counters of bytes; a track for each place of a thread block on
an SM, with the blocks that ran there and, in them, when they compute and what they wait for; and
what each place has in flight, on as many tracks as tiles are in flight together (slices of a track
nest or follow each other: the format has no room for others). A tile that has to come from DRAM
has a slice "miss" in its own.
"""

import json
from collections import namedtuple
from itertools import groupby

import numpy as np

from ..simulator.engines.l2_log import START, STOP
from ..simulator.tape import Kind

LAUNCHES, BLOCKS, TILES = 1, 2, 3  # process ids
PROCESSES = {LAUNCHES: "launches and bytes", BLOCKS: "thread blocks on SMs",
             TILES: "tiles in flight"}
SLICES_OF_AN_EVENT = 4  # at most: work, a wait, the tile in flight, its miss
SAMPLES = 200  # of each counter
MISS = "miss"
_VERBS = {Kind.LOAD: "load", Kind.STORE: "store", Kind.REDUCE: "add to"}

# An event of the log; times are nanoseconds since the first launch, bytes are those of elements
# (SM boundary) and of sectors (DRAM).
Event = namedtuple("Event", "slot phase kind head tensor row rows col cols bytes dram_bytes "
                            "written_back issued clock ready end")


class Trace:
    """The trace of what the L2 reader noted (``events``, l2_log.EVENT records) of a program.

    ``slices`` are complete events, ``counters`` counter events, each in the order of time;
    ``span_ns`` is when the last slice ends. ``on_progress`` gets the share that is done.
    """

    def __init__(self, program, gpu, events: np.ndarray, on_progress=lambda share: None):
        self.program, self.gpu = program, gpu
        self.slices, self._names = [], []
        order = np.lexsort((np.arange(len(events)), events["phase"], events["slot"]))
        found = list(map(Event._make, zip(*_columns(program, gpu, events[order]), strict=True)))
        self.span_ns = max((event.end for event in found), default=0)
        self._launches(found)
        done = 0
        for slot, place in groupby(found, key=lambda event: event.slot):
            events = list(place)
            self._place(f"SM {slot % gpu.sm_count:03}.{slot // gpu.sm_count}", events)
            done += len(events)
            on_progress(done / len(found))
        self.slices.sort(key=lambda slice: (slice["ts"], -slice["dur"]))
        self.counters = list(_counters(found, self.span_ns))

    @property
    def blocks(self) -> int:
        """Thread blocks that started."""
        return sum(slice["pid"] == BLOCKS and "head" in slice["args"] for slice in self.slices)

    def moved(self) -> dict[str, dict[str, int]]:
        """Bytes of the tiles that moved, over each boundary."""
        tiles = [slice for slice in self.slices
                 if slice["pid"] == TILES and slice["name"] != MISS]
        read = sum(tile["args"]["bytes"] for tile in tiles if tile["name"].startswith("load"))
        every = {name: sum(tile["args"].get(name, 0) for tile in tiles)
                 for name in ("bytes", "dram_bytes", "written_back_bytes")}
        return {"sm": {"read_bytes": read, "write_bytes": every["bytes"] - read},
                "dram": {"read_bytes": every["dram_bytes"],
                         "write_bytes": every["written_back_bytes"]}}

    def text(self, about: dict) -> str:
        """The JSON document, an event a line; ``about`` says what it is a trace of."""
        processes = [_name("process_name", pid, 0, name) for pid, name in PROCESSES.items()]
        timed = sorted(self.slices + self.counters, key=lambda event: event["ts"])
        lines = ",\n".join(json.dumps(event, separators=(",", ":"))
                           for event in [*processes, *self._names, *timed])
        return (f'{{"displayTimeUnit":"ns","otherData":{json.dumps(about)},"traceEvents":[\n'
                f"{lines}\n]}}\n")

    def _track(self, pid: int, name: str) -> int:
        """A new track, whose number no other process has."""
        self._names.append(_name("thread_name", pid, len(self._names) + 1, name))
        return len(self._names)

    def _slice(self, pid: int, track: int, name: str, begin: int, end: int, **args):
        self.slices.append({"ph": "X", "name": name, "pid": pid, "tid": track, "ts": begin / 1000,
                            "dur": (end - begin) / 1000, "args": args})

    def _launches(self, events: list[Event]):
        track = self._track(LAUNCHES, "launches")
        for number, phase in enumerate(self.program.phases):
            inside = [event for event in events if event.phase == number]
            if inside:
                self._slice(LAUNCHES, track, phase.name, min(event.issued for event in inside),
                            max(event.end for event in inside))

    def _place(self, name: str, events: list[Event]):
        """The tracks of one place of a thread block on an SM."""
        track, lanes = self._track(BLOCKS, name), []
        starts = [at for at, event in enumerate(events) if event.kind == START]
        for first, after in zip(starts, [*starts[1:], len(events)], strict=True):
            self._block(track, events[first], events[first + 1:after])
        for event in events:
            if event.kind >= 0:
                self._tile(name, lanes, event)

    def _block(self, track: int, start: Event, events: list[Event]):
        """A thread block to its end, or as far as the trace goes."""
        axes = zip(self.program.phases[start.phase].axes, (start.row, start.col), strict=False)
        name = ", ".join([f"head {start.head}", *(f"{axis.var.name} {at}" for axis, at in axes)])
        end = max([start.end, *(max(event.clock, event.end) for event in events)])
        self._slice(BLOCKS, track, name, start.issued, end, head=start.head)
        done = start.issued
        for event in events:
            if event.clock > done:
                self._slice(BLOCKS, track, "compute", done, event.clock)
                done = event.clock
            if event.kind != STOP and event.end > done:
                waits = event.kind == Kind.LOAD
                verb = "wait for" if waits else _VERBS[event.kind]
                self._slice(BLOCKS, track, f"{verb} {self._tensor(event)}", done, event.end)
                done = event.end

    def _tile(self, place: str, lanes: list[list], event: Event):
        """A tile that moves, on the first track of its place that is free, or on a new one."""
        lane = next((lane for lane in lanes if lane[1] <= event.issued), None)
        if lane is None:
            lane = [self._track(TILES, f"{place} #{len(lanes)}"), 0]
            lanes.append(lane)
        begin = event.issued if event.kind == Kind.LOAD else min(event.ready, event.end)
        evicted = {"written_back_bytes": event.written_back} if event.written_back else {}
        self._slice(TILES, lane[0], f"{_VERBS[event.kind]} {self._tensor(event)}", begin, event.end,
                    bytes=event.bytes, dram_bytes=event.dram_bytes, head=event.head,
                    row=event.row, rows=event.rows, column=event.col, columns=event.cols, **evicted)
        if event.dram_bytes and event.ready > begin:
            self._slice(TILES, lane[0], MISS, begin, event.ready, bytes=event.dram_bytes)
        lane[1] = event.end

    def _tensor(self, event: Event) -> str:
        return self.program.tensors[event.tensor].name


def _columns(program, gpu, events: np.ndarray):
    """The columns of Event as lists."""
    element_bytes = np.array([*(tensor.element_bytes for tensor in program.tensors), 0])
    moved = events["rows"] * events["cols"] * element_bytes[events["tensor"]]
    sector = gpu.l2.sector_bytes
    begins = np.zeros(len(program.phases))  # of phases, one after the other
    for number in range(1, len(begins)):
        before = events[events["phase"] == number - 1]
        begins[number] = begins[number - 1] + before["end"].max(initial=0)
    for name in ("slot", "phase", "kind", "head", "tensor", "row", "rows", "col", "cols"):
        yield events[name].tolist()
    yield from (moved.tolist(), (events["missed"] * sector).tolist(),
                (events["written_back"] * sector).tolist())
    for name in ("issued", "clock", "ready", "end"):
        cycles = begins[events["phase"]] + events[name]
        yield np.rint(cycles / gpu.boost_clock_hz * 1e9).astype(np.int64).tolist()


def _counters(events: list[Event], span_ns: int):
    """Counter events: bytes so far over each boundary, and their rates since the sample before."""
    moves = sorted((event for event in events if event.kind >= 0), key=lambda event: event.end)
    ends = np.array([event.end for event in moves], np.int64)
    samples = np.unique(np.linspace(0, span_ns, SAMPLES).round().astype(np.int64))
    upto = np.searchsorted(ends, samples, side="right")
    boundaries = {
        "SM boundary": {"read": [event.bytes * (event.kind == Kind.LOAD) for event in moves],
                        "write": [event.bytes * (event.kind != Kind.LOAD) for event in moves]},
        "L2": {"hit": [max(event.bytes - event.dram_bytes, 0) for event in moves],
               "miss": [event.dram_bytes for event in moves]},
        "DRAM": {"read": [event.dram_bytes for event in moves],
                 "write": [event.written_back for event in moves]},
    }
    for boundary, parts in boundaries.items():
        totals = {part: np.concatenate([[0], np.cumsum(values, dtype=np.int64)])[upto]
                  for part, values in parts.items()}
        rates = {part: np.diff(total, prepend=0) / np.diff(samples, prepend=-1)
                 for part, total in totals.items()}
        for name, found in ((f"{boundary} bytes", totals), (f"{boundary} GB/s", rates)):
            for at, *values in zip(samples.tolist(), *(v.tolist() for v in found.values()),
                                   strict=True):
                yield {"ph": "C", "name": name, "pid": LAUNCHES, "tid": 0, "ts": at / 1000,
                       "args": dict(zip(found, values, strict=True))}


def _name(what: str, pid: int, track: int, name: str) -> dict:
    return {"ph": "M", "name": what, "pid": pid, "tid": track, "ts": 0, "args": {"name": name}}
