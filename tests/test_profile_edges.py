"""Do predictions hold at the edges of what a profile may say, and where a GPU lacks a unit?"""

import pytest
from hbmeter import kernels
from hbmeter.experiments import records
from hbmeter.hwprofiles import load
from hbmeter.kernels.errors import Unavailable
from hbmeter.simulator import schedules, traffic
from hbmeter.simulator.bounds import program_bound
from hbmeter.simulator.problem import Attention
from hbmeter.simulator.tiles import Tiles
from hbmeter.simulator.time_model import predict

H200 = load("h200")


def test_more_first_sms_than_there_are_are_all():
    def of(count):
        gpu = H200.model_copy(update={"l2": H200.l2.model_copy(update={"first_sms": count})})
        problem, tiles = Attention(1, 40, 512, 64), Tiles(64, 64)
        how = kernels.get("flash2_mma").executions(problem, tiles)
        time = predict(schedules.build("flash2", problem, tiles), gpu, how, blocks_per_sm=2)
        return time.seconds, traffic("flash2", problem, gpu, tiles)["dram"]["read_bytes"]

    assert of(133) == of(132)


@pytest.mark.parametrize("name", ["t4", "v100-16gb"])
def test_a_kernel_on_fma_units_has_a_bound_where_the_gpu_has_no_units_for_its_dtype(name):
    gpu, problem = load(name), Attention(1, 4, 777, 64, dtype="bf16")
    program = schedules.build("flash2", problem, Tiles(64, 64))
    found = program_bound(program, gpu, "fma").seconds["matmul"]
    assert found == problem.forward_flops / gpu.flops.fp32
    assert "matmul" not in program_bound(program, gpu).seconds


def test_a_script_that_records_says_in_one_line_that_there_is_nothing_to_measure_on(capsys):
    def main():
        raise Unavailable("no GPU here")

    assert records.run(main) == 3 and capsys.readouterr().err == "hbmeter: no GPU here\n"
    assert records.run(lambda: None) == 0
