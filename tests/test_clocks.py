"""What do the recorded clocks of GPCs, and arrivals of tiles, say?"""

import json

import numpy as np
import pytest
from hbmeter.experiments import records
from hbmeter.hwprofiles import load
from hbmeter.kernels.probes import arrivals, clocks


def recorded(name, part):
    return [json.loads(path.read_text(encoding="utf-8"))[part]
            for path in sorted((records.FOLDER / name).glob("*.json"))]


@pytest.mark.parametrize("runs", recorded("clocks", "runs"))
def test_gpcs_have_clocks_of_their_own_that_part_beside_reads_of_dram(runs):
    """SMs of a GPC share one; GPCs are some tenths of a per cent apart where power is short."""
    said = clocks.facts(runs)
    assert all(0.005 < spread < 0.02 for spread in said["mma_fp16"][5:])
    assert all(0.005 < spread < 0.02 for spread in said["wgmma_fp16"])
    full = [run for run in runs if run["readers"] == 264]
    assert all(clocks._deviation(run, within=True) < 0.0002 for run in full)
    assert all(clocks._deviation(run) > 0.003 for run in full)


def test_which_gpcs_are_fast_is_a_units_own():
    """Of a unit the same under both loads; of two units not."""
    def order(runs, load):
        run = next(run for run in runs if (run["load"], run["readers"]) == (load, 264))
        middle = np.median(run["clock_hz"], axis=0)
        return np.array([middle[gpc].mean() for gpc in sorted(run["gpcs"][0])])

    units = [[order(runs, load) for load in ("mma_fp16", "wgmma_fp16")]
             for runs in recorded("clocks", "runs")]
    assert all(np.corrcoef(mma, wgmma)[0, 1] > 0.9 for mma, wgmma in units)
    assert min(np.corrcoef(units[0][0], other[0])[0, 1] for other in units[1:]) < 0.5


def test_the_profile_has_the_mean_of_the_units():
    """Each unit has two GPCs that are fast and six that are slow or nearly so: no even spread."""
    units, l2 = recorded("clocks", "runs"), load("h200").l2
    for name, of_load in (("mma_sync", "mma_fp16"), ("wgmma", "wgmma_fp16")):
        mean = np.mean([clocks.facts(runs)[of_load] for runs in units], axis=0)
        assert getattr(l2, f"gpc_clock_spread_{name}") == pytest.approx(mean, abs=1e-5)
    offsets = np.array([clocks.offsets(runs) for runs in units])
    assert sorted(l2.gpc_clock_offsets) == pytest.approx(offsets.mean(axis=0), abs=0.006)
    assert (offsets[:, 6] > 0.6).all() and (offsets[:, 5] < 0.2).all()


def test_spreads_at_shares_of_the_most_bytes_read():
    """Two GPCs at ±d of their mean: sqrt(3) d, on lines between the shares."""
    runs = [{"load": load, "readers": readers, "read_bytes_per_s": [rate] * 3, "gpcs": [[[0], [1]]],
             "clock_hz": [[1e9 * (1 - apart), 1e9 * (1 + apart)]] * 3}
            for load in ("mma_fp16", "wgmma_fp16")
            for readers, rate, apart in ((0, 0, 0.0), (16, 1e12, 0.01), (32, 4e12, 0.01))]
    said = np.array(clocks.facts(runs)["mma_fp16"]) / 3 ** 0.5
    assert said == pytest.approx([0, 0.004, 0.008, *[0.01] * 8])


def test_tiles_from_dram_come_some_hundred_cycles_later_than_from_l2():
    said = arrivals.facts(*recorded("arrivals", "loads"))
    assert 300 < said["tile_cycles"] < 450 and 64 < said["tile_bytes_per_clock"] < 128
    late = said["dram_late_cycles"]
    assert late == sorted(late) and late[0] > 300 and 500 < late[5] < 700 and late[-1] < 1200
