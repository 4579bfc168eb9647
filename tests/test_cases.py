"""Do reported launches, grids and exports come out as their users saw? Values from public bug
reports; exports are synthetic, in the form reported."""

import json
import re

import pytest
from hbmeter.experiments import ncu
from hbmeter.experiments.cli import main
from hbmeter.hwprofiles import FOLDER, load
from hbmeter.simulator import schedules, traffic
from hbmeter.simulator.blocks import Candidate
from hbmeter.simulator.occupancy import occupancy
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles


def needed_bytes(tiles, head_dim, dtype="bf16", value_dim=None):
    problem = Attention(1, 1, 512, head_dim, value_dim=value_dim, dtype=dtype)
    return schedules.build("flash2", problem, tiles).smem_bytes_per_block


def fits(gpu, tiles, head_dim, **shape):
    return needed_bytes(tiles, head_dim, **shape) <= load(gpu).smem.bytes_per_block_max


def test_head_dim_256_does_not_fit_an_rtx_4090_but_an_a100():
    assert needed_bytes(Tiles(128, 64), 256) == 131_072
    assert not fits("rtx4090", Tiles(128, 64), 256) and fits("a100-40gb", Tiles(128, 64), 256)
    assert all(fits("rtx4090", Tiles(128, 64), d) for d in (64, 128, 192))


@pytest.mark.parametrize(("tiles", "kib", "launches"), [
    (Tiles(64, 64, 3), 144, False), (Tiles(128, 32, 2), 88, True),
    (Tiles(128, 16, 3), 78, True), (Tiles(32, 64, 2), 92, True),
])
def test_keys_wider_than_values_on_an_a10g(tiles, kib, launches):
    """The estimate; the compiler's own figure for the first was 139,776 B. sm_86 limits."""
    assert needed_bytes(tiles, 192, value_dim=128) == kib * 1024
    assert fits("a10", tiles, 192, value_dim=128) is launches


def test_head_dim_512_on_turing():
    assert needed_bytes(Tiles(32, 32), 512, "fp16") == 98_304
    assert not fits("t4", Tiles(32, 32), 512, dtype="fp16")
    assert needed_bytes(Tiles(16, 16), 512, "fp16") == 49_152
    assert fits("t4", Tiles(16, 16), 512, dtype="fp16")


def test_what_does_not_fit_says_both_numbers():
    problem = Attention(1, 1, 512, 256, dtype="bf16")
    program = schedules.build("flash2", problem, Tiles(128, 64))
    why = Candidate(program, load("rtx4090")).why_not
    assert why == "131,072 B of shared memory, 101,376 allowed"


@pytest.mark.parametrize(("threads", "registers", "smem", "limiters", "share"), [
    (256, 144, 70_656, {"registers", "shared memory"}, 1 / 6),
    (128, 232, 68_608, {"shared memory"}, 1 / 12),
])
def test_one_block_on_an_sm_of_an_rtx_5090(threads, registers, smem, limiters, share):
    found = occupancy(load("rtx5090"), threads, registers, smem)
    assert found.blocks_per_sm == 1 and set(found.limiters) == limiters
    assert found.share_of_warps == pytest.approx(share)


# ---- Limits, exact to the byte ----


@pytest.mark.parametrize(("keys", "needed", "blocks"), [(32, 102_400, 0), (16, 69_632, 1)])
def test_fewer_keys_not_fewer_stages_make_mla_decode_fit_a_v100(keys, needed, blocks):
    """16 heads × 576 of queries and keys × 512 of values, both staged as fp32 on this GPU."""
    assert 16 * 576 * 4 + keys * 512 * 4 == needed
    found = occupancy(load("v100-16gb"), 128, 64, needed)
    assert found.blocks_per_sm == blocks and found.limiters == ("shared memory",)


def test_two_bytes_too_many_on_a_t4(capsys):
    """1·1·2 B of Q and 16,384·(1 + 1)·2 B of K and V: 65,538."""
    tile = ["traffic", "--schedule", "flash2", "--gpu", "t4", "--head-dim", "1", "--br", "1",
            "--batch", "1", "--heads", "1", "--seq", "64", "--engine", "scratchpad", "--bc"]
    assert main([*tile, "16384"]) == 2
    assert "need 65,538 B of shared memory, t4 allows 65,536" in capsys.readouterr().err
    assert main([*tile, "16383"]) == 0


def test_a_gemm_tile_of_four_stages_on_an_a100():
    """(128 + 256)·64·2 B a stage."""
    gpu, problem = load("a100-40gb"), Attention(1, 1, 512, 64, dtype="fp16")
    four, three = (Candidate(schedules.build("standard", problem, Tiles(128, 256, n, bk=64)), gpu)
                   for n in (4, 3))
    assert four.why_not == "196,608 B of shared memory, 166,912 allowed"
    assert three.resources.smem_bytes == 147_456 and three.why_not is None


def test_blocks_says_why_a_tile_does_not_fit(capsys):
    code = main(["blocks", "--gpu", "rtx4090", "--dtype", "bf16", "--head-dim", "256", "--seq",
                 "512", "--br", "128", "--bc", "64", "--json"])
    one, two = json.loads(capsys.readouterr().out)["blocks"]
    assert code == 0 and not one["fits"] and not two["fits"]
    assert one["why_not"] == "131,072 B of shared memory, 101,376 allowed"


# ---- Grid order ----


def test_grid_order_alone_moves_dram_traffic_more_than_tenfold(tmp_path):
    """One 4 MiB L2 slice with 38 SMs; K and V of a head are as large as the slice. Reported at
    65,536 keys and 64 heads: hit rate 2.36% and 93.62%, 15.3 times the DRAM traffic."""
    text = (FOLDER / "mi300x.yaml").read_text()
    for key, value in {"sm_count": 38, "partitions": 1, "size_bytes": 4 << 20}.items():
        text = re.sub(rf"(?m)^( *{key}:).*", rf"\1 {value}", text)
    path = tmp_path / "slice.yaml"
    path.write_text(text)
    problem = Attention(1, 40, 8192, 128, dtype="bf16")
    row, head = (traffic("flash2", problem, load(path), Tiles(128, 64), order=order)
                 for order in ("row", "head"))
    assert row["l2"]["sectors_read"] == head["l2"]["sectors_read"]
    assert head["l2"]["hit_rate"] < 0.05 and row["l2"]["hit_rate"] > 0.9
    assert head["dram"]["read_bytes"] > 10 * row["dram"]["read_bytes"]


# ---- Nsight Compute exports ----

ID = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name")
KERNEL = 'void flash::fwd<Traits<64, "x">, (bool)1>(Params, int [3])'
SHAPE = ["--batch", "1", "--heads", "4", "--seq", "256", "--head-dim", "64", "--br", "64",
         "--bc", "64"]
NOISE = "epoch 1, loss 2,5\n==PROF== Connected to process 7 (/usr/bin/python3.12)\n"


def row(*cells):
    return ",".join('"' + str(cell).replace('"', '""') + '"' for cell in cells) + "\n"


def raw(columns):
    """A raw page with one launch: ``columns`` is [(metric, unit, value as printed)]."""
    metrics, units, values = zip(*columns, strict=True)
    launch = ("0", "7", "python", "127.0.0.1", KERNEL)
    return row(*ID, *metrics) + row(*[""] * len(ID), *units) + row(*launch, *values)


@pytest.fixture(scope="module")
def point():
    return traffic("flash2", Attention(1, 4, 256, 64), load("h200"), Tiles(64, 64))


@pytest.fixture
def verdicts(tmp_path, capsys):
    """A function from an export's text to the exit code and the boundaries of verify --ncu."""
    def judge(text):
        path = tmp_path / "export.csv"
        path.write_text(text)
        code = main(["verify", "--ncu", str(path), *SHAPE, "--json"])
        captured = capsys.readouterr()
        if not captured.out:
            return code, captured.err
        return code, {line["boundary"]: line for line in json.loads(captured.out)["boundaries"]}
    return judge


def test_a_details_page_of_ragged_rows_and_thousands_separators(verdicts, point):
    launch = ("0", "7", "python", "127.0.0.1", KERNEL)
    text = row(*ID, "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name")
    text += row(*launch, "Speed Of Light", "Elapsed Cycles", "cycle", "12,319,469")
    text += row(*launch, "Speed Of Light", "SM Frequency", "hz", "4,963,609,951.19")
    text += row(*launch, "SpeedOfLight", "", "", "", "Bottleneck", "WRN", "Low, [very] low")
    text += row(*launch, "Command line", ncu.SM_READ, "byte", f"{point['sm']['read_bytes']:,}")
    text += row(*launch, "Command line", ncu.DRAM_READ, "", f"{point['dram']['read_bytes']:,}")
    code, found = verdicts(text)
    assert code == 0 and found["SM read"]["agrees"] and found["DRAM read"]["agrees"]
    assert found["SM read"]["measured"] == point["sm"]["read_bytes"]


def test_a_raw_page_of_rounded_scaled_units(verdicts, point):
    code, found = verdicts("==PROF== Profiling\n" + raw([
        (ncu.SM_READ, "Mbyte", f"{point['sm']['read_bytes'] / 1e6:.2f}"),
        ("gpu__time_duration.sum", "usecond", "1,234.57"),
    ]))
    line = found["SM read"]
    assert code == 0 and line["agrees"] and line["rounding"] == 5_000
    assert abs(line["measured"] - point["sm"]["read_bytes"]) <= line["rounding"]


def test_a_newer_chip_without_the_older_counters(verdicts, point):
    code, found = verdicts(NOISE + raw([
        ("dram__bytes_read.sum", "", "n/a"), ("dram__bytes_write.sum", "", "n/a"),
        ("dram__bytes_op_read.sum", "", point["dram"]["read_bytes"]),
        ("lts__t_sector_hit_rate.pct", "%", "100.39"),
    ]))
    assert code == 0 and found["DRAM read"]["agrees"]
    assert found["DRAM write"]["measured"] is None  # n/a is never 0
    assert found["SM read"]["measured"] is None


def test_sums_of_two_launches_are_summed(verdicts, point):
    half = point["sm"]["read_bytes"] // 2
    page = raw([(ncu.SM_READ, "byte", half)])
    _, found = verdicts(page + row("1", "7", "python", "127.0.0.1", KERNEL, half))
    assert found["SM read"]["agrees"] and found["SM read"]["measured"] == 2 * half


def test_counters_that_are_not_permitted(verdicts):
    code, says = verdicts(
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
        "Performance Counters on the target device 0.\n==WARNING== No kernels were profiled.\n")
    assert code == 3 and "SYS_ADMIN" in says and says.count("\n") == 1


def test_a_metric_that_is_not_found_is_left_out(verdicts, point):
    error = f"==ERROR== Failed to find metric regex:{ncu.DRAM_READ}\n"
    code, found = verdicts(error + raw([(ncu.SM_READ, "byte", point["sm"]["read_bytes"])]))
    assert code == 0 and found["SM read"]["agrees"] and found["DRAM read"]["measured"] is None
    code, says = verdicts(error)
    assert code == 2 and ncu.DRAM_READ in says and "leave it out" in says
