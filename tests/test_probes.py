"""Do the probes compile for every architecture, hold the work that they count, and measure it?

What hardware said is checked against what must hold of it: banks, issue slots, levels of memory.
"""

import json
import struct
from collections import Counter
from functools import cache
from math import gcd
from statistics import median

import fake_cupy
import numpy as np
import pytest
from hbmeter.experiments import (
    cli,
    profile_copy,
    rates_measure,
    rates_record,
    rates_table,
    records,
)
from hbmeter.experiments.figures import calibration
from hbmeter.hwprofiles import load, loader
from hbmeter.kernels import compiler, probes, runner
from hbmeter.kernels.base import Kernel
from hbmeter.kernels.errors import Unavailable
from hbmeter.kernels.probes import bench, latency, power, starts, wgmma
from hbmeter.simulator.errors import InputError

ARCHES = ("sm_80", "sm_89", "sm_90a", "sm_100a")
SOURCES = sorted(path.stem for path in probes.FOLDER.glob("*.cu"))
H200 = load("h200")


class Source(Kernel):
    """A probe's source as the compiler takes kernels."""

    def __init__(self, name):
        self.name, self.only_arch = name, "sm_90a" if name == "wgmma" else None

    source = property(lambda self: (probes.FOLDER / f"{self.name}.cu").read_text())

    def check(self, problem, tiles):
        """Nothing to refuse."""

    def options(self, problem, tiles, count=False, order="row"):
        return bench.OPTIONS


@cache
def built(name, arch):
    try:
        return compiler.build(Source(name), None, None, arch)
    except Unavailable as error:
        pytest.skip(str(error))


# ---- Builds --------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", SOURCES)
def test_probes_compile_without_spilling(name, arch):
    if not Source(name).runs_on(arch):
        pytest.skip(f"{name} has no code for {arch}")
    found = built(name, arch).resources
    assert found and all(entry.startswith("hbmeter_probe_") for entry in found)
    if name != "occupancy":  # which never runs, and has no more registers than it is given
        assert not [entry for entry, taken in found.items()
                    if taken.spill_store_bytes + taken.spill_load_bytes + taken.stack_bytes]


def test_occupancy_kernels_have_exactly_the_registers_in_their_names():
    for entry, taken in built("occupancy", "sm_90a").resources.items():
        assert taken.registers == int(entry.removeprefix("hbmeter_probe_hold"))


def instructions(cubin: bytes) -> dict[str, Counter]:
    """entry -> machine operations by number: the low 9 bits of each 16-byte instruction."""
    offset, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<II4Q", cubin, offset + i * size) for i in range(count)]
    names = headers[names_at][4]
    found = {}
    for name_at, _, _, _, start, length in headers:
        end = cubin.index(b"\0", names + name_at)
        name = cubin[names + name_at:end].decode()
        if name.startswith(".text."):
            words = np.frombuffer(cubin[start:start + length], "<u8")[::2]
            found[name.removeprefix(".text.")] = Counter((words & 0x1FF).tolist())
    return found


# sm_90: as nvdisasm names them
FFMA, FMNMX, MUFU, SHFL, PACK = 0x023, 0x009, 0x108, 0x189, 0x03E
LDS, STS, LDSM, LDG, HMMA, HGMMA, QGMMA = 0x184, 0x188, 0x03B, 0x181, 0x03C, 0x1F0, 0x1F3


@pytest.mark.parametrize("name, entry, operation, at_least", [
    ("pipes", "fma", FFMA, 256), ("pipes", "max", FMNMX, 256), ("pipes", "exp2", MUFU, 256),
    ("pipes", "shuffle", SHFL, 256), ("pipes", "pack", PACK, 256),
    ("pipes", "exp2_fma8", FFMA, 128), ("pipes", "exp2_fma8", MUFU, 16),
    ("memory", "read", LDG, 8), ("memory", "read_in_step", LDG, 8), ("memory", "copy", LDG, 8),
    ("latency", "chase", LDG, 8), ("latency", "chase_shared", LDS, 8),
    ("tensor", "mma_fp16", HMMA, 16), ("tensor", "mma_bf16", HMMA, 16),
    ("tensor", "mma_tf32", HMMA, 16), ("tensor", "mma_rows64", HMMA, 128),
    *[("wgmma", f"wgmma_{dtype}_n{n}_{where}", HGMMA, 8) for dtype in ("fp16", "bf16")
      for n in (64, 128, 256) for where in ("shared", "registers")],
    ("wgmma", "wgmma_tf32_n256_shared", HGMMA, 8), ("wgmma", "wgmma_fp8_n256_shared", QGMMA, 8),
])
def test_a_loop_holds_the_instructions_that_it_counts(name, entry, operation, at_least):
    found = instructions(built(name, "sm_90a").cubin)[f"hbmeter_probe_{entry}"]
    assert found[operation] >= at_least


@pytest.mark.parametrize("name, entry, operation, exactly", [
    ("shared", "load4", LDS, 8), ("shared", "load16", LDS, 8), ("shared", "ldmatrix", LDSM, 8),
    ("tensor", "mma_rows16", LDSM, 16), ("tensor", "mma_rows64", LDSM, 16),
])
def test_loads_of_shared_memory_are_in_one_loop_body_where_none_repeats(
        name, entry, operation, exactly):
    """In an unrolled one ptxas drops loads that repeat an address: it did, and bandwidth was four
    times too high."""
    found = instructions(built(name, "sm_90a").cubin)[f"hbmeter_probe_{entry}"]
    assert found[operation] == exactly


# ---- Facts from points -----------------------------------------------------------------------


def point(series, work, samples, **at):
    return {"series": series, "at": {"sms": 2, **at}, "work": work, "unit": "x",
            "samples": [{"seconds": s, "cycles": c, "clock_hz": 1e9} for s, c in samples]}


def test_rates_curves_and_the_best_point():
    slow = point("a", 100, [(2.0, 50), (1.0, 25), (4.0, 100)], n=8)
    fast = point("a", 100, [(0.5, 10)], n=16)
    assert bench.rates(slow) == (50, 100, 25)
    assert bench.rates_per_clock(slow) == (1, 2, 0.5)
    assert bench.cycles_each(slow) == (0.5, 0.25, 1)
    assert bench.best([slow, fast]) is fast and bench.best([]) is None
    assert bench.curve([fast, slow], "n", bench.rates) == ((8, 50), (16, 200))
    assert bench.curve([fast], "n", bench.rates) == ()
    assert bench.select([slow, fast], "a", n=8) == [slow] and not bench.select([slow], "b")
    fact = bench.Fact("a", "x", bench.rates(slow), "how")
    assert (fact.value, fact.spread) == (50, 37.5)


def test_a_sample_is_timed_from_an_sms_first_start_to_its_last_stop():
    """Two blocks of an SM that take turns: half of each one's time would be half of the truth."""
    stamps = np.array([[100, 200, 1000, 1100, 7], [150, 300, 1050, 1200, 7],
                       [900, 1100, 1000, 1200, 3]])
    found = bench._sample(1.0, stamps)
    assert found == {"seconds": 1.0, "cycles": 200, "slowest_cycles": 200,
                     "clock_hz": round(450 / 450 * 1e9), "span_s": 200 / 1e9}


@pytest.mark.parametrize("values, found", [
    ([300] * 6 + [500] * 2, (300, 500)), ([300, 301, 299, 300] * 4, None),
    ([300] * 15 + [500], None), ([1, 100, 200, 300, 400, 501], None),
])
def test_near_and_far_are_told_apart_by_a_gap(values, found):
    assert latency.split(np.array(values, float)) == found


def test_no_points_give_no_facts():
    assert [fact for name in probes.names() for fact in probes.get(name).facts([])] == []


# ---- The recorded H200 -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def h200():
    found, = [record for record in rates_record.load_all() if record.gpu == "NVIDIA H200"]
    return found


@pytest.fixture(scope="module")
def facts(h200):
    return {fact.name: fact for fact in h200.facts}


def test_every_recorded_fact_has_repeats_and_stands(h200):
    for item in rates_record.judge(h200.facts, H200):
        assert len(item.fact.values) >= 5 and item.refusal is None, item


def test_the_profile_holds_what_the_record_says(h200):
    text = loader.find("h200").read_text(encoding="utf-8")
    assert profile_copy.with_facts(text, h200.facts, h200.provenance, "x", kept=True) == text


def test_it_took_at_most_90_seconds(h200):
    assert h200.provenance["gpu_s"] <= 90


@pytest.mark.parametrize("name, width, lanes", [
    ("smem_read_4", 4, 32), ("smem_read", 16, 8), ("smem_write_4", 4, 32), ("smem_write", 16, 8),
    ("smem_ldmatrix", 16, 8)])
def test_bank_conflicts_cost_what_32_banks_of_4_bytes_say(facts, name, width, lanes):
    """``lanes`` accesses are served together; those whose distance in accesses shares a factor
    with their number meet in a bank."""
    for lane_bytes, rate in facts[name].curve:
        ways = gcd(lane_bytes // width, lanes)
        assert rate == pytest.approx(128 / ways, rel=0.01), lane_bytes


def test_exp2_among_multiply_adds_takes_an_issue_slot_and_its_own_unit(facts):
    for fmas, rate in facts["exp2_mixed_rate"].curve:
        assert rate == pytest.approx(min(16, 128 / (fmas + 1)), rel=0.08), fmas


def test_levels_of_memory_are_in_order(facts):
    latencies = [facts[name].value for name in (
        "smem_latency", "l1_latency", "l2_near_load_latency", "l2_far_load_latency",
        "hbm_latency")]
    assert latencies == sorted(latencies)
    assert facts["hbm_copy_kernel"].value < facts["hbm_read"].value < facts["l2_read_private"].value
    assert facts["hbm_add"].value < min(facts["l2_add"].value, facts["hbm_copy_kernel"].value) / 2
    assert facts["l2_read_private"].curve[-1][1] == pytest.approx(facts["hbm_read"].value, rel=0.1)


def test_products_fed_from_shared_memory_are_bound_by_it(facts):
    """16 rows a warp: 2 products of 4,096 FLOPs for each 512 bytes at 128 bytes a clock."""
    fed = dict(facts["mma_fp16_from_smem_per_clock"].curve)
    alone = facts["mma_fp16_per_clock"].value
    assert fed[16] == pytest.approx(2 * 4096 / (512 / 128), rel=0.03)
    assert fed[16] < fed[32] < fed[64] <= alone < facts["wgmma_fp16_per_clock"].value


# ---- Refusals, files, command --------------------------------------------------------------------


def document(h200, **changes):
    """The record's document with the work of some series multiplied."""
    copy = json.loads(json.dumps({"provenance": h200.provenance, "probes": h200.probes}))
    for points in copy["probes"].values():
        for one in points:
            one["work"] *= changes.get(one["series"], 1)
    return copy


@pytest.mark.parametrize("series, fact", [
    ("load16", "smem_read"), ("exp2", "exp2_rate"), ("mma_fp16", "mma_fp16"),
    ("hbm_read", "hbm_read"), ("wgmma_fp8", "wgmma_fp8_per_clock"), ("fma", "fp32_fma")])
def test_a_rate_above_what_the_gpu_can_do_is_refused(h200, series, fact):
    changed = rates_record.record("x", document(h200, **{series: 2}))
    refused = {item.fact.name: item.refusal for item in rates_record.judge(changed.facts, H200)
               if item.refusal}
    assert "the most that h200 can do" in refused.get(fact, ""), refused
    assert f"REFUSED {fact}: " in rates_table.text(
        changed, rates_record.judge(changed.facts, H200))


def test_peaks_are_powers_of_two_a_clock_at_the_clock_that_was_kept():
    for name, peak, a_clock in (("h200", "flops.fp16", 4096), ("h200", "flops.fp32", 256),
                                ("a100-40gb", "flops.bf16", 2048), ("rtx4090", "flops.fp16", 512),
                                ("l4", "flops.fp8", 2048), ("b200", "flops.fp16", 8192)):
        gpu = load(name)
        fact = bench.Fact("x", "flop_per_s", (1.0,), "how", (1e9,), peak=peak)
        assert rates_record.limit(fact, gpu) == a_clock * gpu.sm_count * 1e9, (name, peak)


def test_a_record_survives_its_file(h200, tmp_path):
    path = tmp_path / "r.json"
    path.write_text(rates_record.text(document(h200)))
    again = rates_record.load(path)
    assert (again.provenance, again.probes) == (h200.provenance, h200.probes)
    assert rates_record.recognises(path) and not rates_record.recognises(tmp_path / "none")


@pytest.mark.parametrize("change", [
    lambda d: d["provenance"].update(format="rates 0"), lambda d: d.update(probes={}),
    lambda d: d["probes"]["pipes"][0].pop("work"), lambda d: d["probes"].update(pipes=[7]),
    lambda d: d["probes"]["pipes"][0].update(samples=[]),
    lambda d: d["probes"]["pipes"][0]["samples"][0].update(seconds=0),
])
def test_files_that_are_no_records_are_refused(h200, change, tmp_path, capsys):
    changed = document(h200)
    change(changed)
    path = tmp_path / "x.json"
    path.write_text(json.dumps(changed))
    with pytest.raises(InputError, match="not a record of hbmeter calibrate"):
        rates_record.load(path)
    assert cli.main(["calibrate", "--recorded", str(path)]) == 2
    assert "not a record of hbmeter calibrate" in capsys.readouterr().err


def test_command_measures_and_writes_the_profile_and_the_raw_values(
        h200, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rates_measure, "measure", lambda: document(h200))
    out = tmp_path / "mine.yaml"
    assert cli.main(["calibrate", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "wgmma_fp16" in printed and "REFUSED" not in printed
    assert "occupancy: 300 of 300 random launches" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.json", "mine.yaml"]
    mine = load(out)
    assert mine.flops == H200.flops and mine.hbm_bytes_per_s == H200.hbm_bytes_per_s
    assert mine.measured["exp2_rate"].value == pytest.approx(16, rel=0.01)
    assert rates_record.load(tmp_path / "mine.json").probes == h200.probes


def test_command_leaves_out_what_is_refused_and_fails(h200, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rates_measure, "measure", lambda: document(h200, exp2=3))
    out = tmp_path / "mine.yaml"
    base = tmp_path / "base.yaml"
    base.write_text(loader.find("h200").read_text().split("measured:\n")[0])
    assert cli.main(["calibrate", "--gpu", str(base), "--out", str(out), "--json"]) == 1
    answer, = json.loads(capsys.readouterr().out)["records"]
    refused = {row["name"] for row in answer["measured"] if row["refusal"]}
    assert "exp2_rate" in refused and not refused & {*load(out).measured}
    assert "fma_rate" in load(out).measured


def power_points(name="h200"):
    """Recorded before the probe was part of the calibration."""
    path = records.FOLDER / "power" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))["points"]


def test_the_profile_has_the_clocks_beside_reads_that_were_recorded():
    measured = load("h200").measured
    for fact in power.facts(power_points()):
        said = measured[fact.name]
        assert said.value == pytest.approx(fact.value, rel=1e-3)
        np.testing.assert_allclose(said.curve, fact.curve, rtol=1e-3)
        assert all(sample["beside"] for point in power_points() for sample in point["samples"])
        assert (np.diff([clock for _, clock in fact.curve]) < 0).all()  # reads cost clock


def test_every_probe_runs_from_measuring_to_the_table_on_a_made_up_gpu(facts, monkeypatch):
    launches = []
    gpu = fake_cupy.cupy(launches)
    monkeypatch.setattr(runner, "require_gpu", lambda: gpu)
    monkeypatch.setattr(bench, "require_gpu", lambda: gpu)
    monkeypatch.setattr(bench, "_module", lambda source, arch: (gpu.RawModule(), None))
    monkeypatch.setattr(rates_measure, "WARMUP_S", 0.01)
    monkeypatch.setattr(latency, "HBM_BYTES", (1 << 20, 2 << 20))
    monkeypatch.setattr(latency, "HBM_PLATEAU", 2 << 20)
    monkeypatch.setattr(starts, "tensor_map", lambda *_: np.zeros(1, "V128"))
    found = rates_record.record("made up", rates_measure.measure())
    assert set(found.probes) == set(probes.names()) and all(found.probes.values())
    defined = {name for source in SOURCES
               if source not in ("l2", *probes.profiled()) for name in
               built(source, "sm_90a").resources}
    assert set(launches) | {n for n in defined if "_hold" in n} == defined
    said = {fact.name: fact for fact in found.facts}
    clocks = {fact.name for name in ("h200", "h200-sustained")
              for fact in power.facts(power_points(name))} - {"first_clock"}  # none falls here
    assert said.keys() == facts.keys() | clocks
    assert said["l2_near_load_latency"].value == 280 and said["l2_far_load_latency"].value == 450
    assert "occupancy: " in rates_table.text(found, rates_record.judge(found.facts), (0, 300))


def test_command_needs_a_gpu(capsys, monkeypatch, tmp_path):
    def refuse():
        raise Unavailable("no GPU is visible: check nvidia-smi")

    monkeypatch.setattr(runner, "require_gpu", refuse)
    assert cli.main(["calibrate", "--out", str(tmp_path / "x.yaml")]) == 3
    assert "nvidia-smi" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_the_figure_draws_it(h200):
    table = calibration.run(None, None, [h200])
    assert calibration.plot(table)
    assert "wgmma fp16" in calibration.describe(table) and "H200" in calibration.notes(table)[0]
    folded, = calibration.tables(table)
    assert len(folded.rows) == len(h200.facts)
    assert all(len(row) == len(folded.header) for row in folded.rows)
    assert calibration.run(None, None, []) == []


# ---- On a GPU --------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["pipes", "shared", "latency", "launch", "occupancy", "starts",
                                  "tensor", "wgmma"])
def test_this_gpus_rates_are_possible(name):
    try:
        run = bench.Bench()
    except Unavailable as error:
        pytest.skip(str(error))
    probes.get(name).measure(run)
    assert run.points or (name == "wgmma" and run.capability != wgmma.CAPABILITY)
    for fact in probes.get(name).facts(run.points):
        assert fact.value > 0 and median(fact.clock_hz or (1,)) > 0
