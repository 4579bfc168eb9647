"""Is every claim judged from evidence alone: do other facts give another verdict?"""

import copy
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hbmeter.experiments import claims, claims_page, cli
from hbmeter.experiments.claims import Number, Verdict
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.tiles import Tiles

NAMES = claims.names()


@pytest.fixture(scope="module")
def found() -> dict:
    """All claims, judged once, by name."""
    return {name: claims.judged(name) for name in NAMES}


def test_claims_are_numbered_one_after_the_other():
    assert [claims.get(name).NUMBER for name in NAMES] == list(range(1, len(NAMES) + 1))
    assert len(NAMES) >= 13  # those of the list; a new one is a file and the next number


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_has_a_verdict_with_labelled_evidence(found, name):
    claim = found[name]
    assert claim.finding.verdict in (Verdict.HOLDS, Verdict.WHERE, Verdict.FAILS)
    assert (claim.finding.verdict == Verdict.WHERE) == bool(claim.finding.where)
    assert len(claim.finding.numbers) > 3
    assert {n.label for n in claim.finding.numbers} <= set(claims.LABELS)
    assert claim.statement.endswith(".") and claims.how(name) and claim.finding.because


MEASURED = ("memory", "linear_traffic", "speed_up", "block_rule", "online_softmax", "decode",
            "larger_tiles")


@pytest.mark.parametrize("name", MEASURED)
def test_a_claim_with_a_recorded_run_shows_what_was_measured(found, name):
    assert any(n.label == "measured" for n in found[name].finding.numbers)


# ---- Doctored facts: the verdict is computed ----------------------------------------------------


def stored_is_linear(facts):
    facts["standard_stored"] = [1000 * n for n in facts["lengths"]]


def reads_are_linear(facts):
    facts["sm"] = list(facts["lengths"])
    facts["dram"] = {name: list(facts["lengths"]) for name in facts["dram"]}


def dram_reads_are_quadratic(facts):
    facts["dram"] = {name: [n * n for n in facts["lengths"]] for name in facts["dram"]}


def every_kernel_reads_k_and_v_again(facts):
    facts["measured"] = {order: [50.0] for order in facts["measured"]}


def speed_up_is_n(facts):
    facts["speedups"] = {key: {n: n / 64 for n in curve}
                         for key, curve in facts["speedups"].items()}


def no_times(facts):
    facts["speedups"] = {}


def the_rule_is_fastest(facts):
    for row in facts["rows"]:
        row |= {"third_why_not": None, "fastest": Tiles(row["third"], row["third"])}


def products_are_equal(facts):
    for flops in facts["flops"].values():
        flops["flash"] = flops["standard"]


def nothing_is_equal(facts):
    for flops in facts["flops"].values():
        flops["flash"] = {"matmul": 2 * flops["standard"]["matmul"], "exp": 0}


def tiled_errs_more_in_fp8(facts):
    for row in facts["errors"]:
        if (row["method"], row["dtype"]) == ("tiled", "fp8"):
            row["error"] *= 100


def tiled_overflows(facts):
    for row in facts["errors"]:
        if row["method"] == "tiled":
            row["error"] = float("inf")


def models_swapped(facts):
    runs = [run for run in facts["runs"] if run.baseline_name != "Megatron-LM"]
    facts["runs"] = [replace(run, model="GPT-2" if run.model.startswith("BERT") else "BERT")
                     for run in runs]


def memory_is_slow(facts):
    for row in facts["rows"]:
        row["read_s"] *= 100


def memory_is_free(facts):
    for row in facts["rows"]:
        row["read_s"] = 0.0


def one_more_pass(facts):
    facts["accesses"]["safe, three passes"] += 1


def splits_gain_nothing(facts):
    for row in facts["measured"]:
        row["best_s"] = row["one_s"]


def tiling_and_splits_gain(facts):
    facts["bytes"]["tiled"] = facts["bytes"]["standard"] // 2
    for row in facts["measured"]:
        row["best_s"] = row["one_s"] / 2


def tiles_read_the_same(facts):
    for tiles in facts["shapes"].values():
        for tile in tiles:
            tile["read_bytes"] = 1


def larger_is_faster(facts):
    for tiles in facts["shapes"].values():
        for tile in tiles:
            tile["read_bytes"] = tile["seconds"] = 1 / (tile["br"] * tile["bc"])
            tile["spilled_bytes"] = 0


def no_memory(facts):
    facts["room_bytes"] = 0


def memory_for_flash_only(facts):
    facts["room_bytes"] = facts["kept"]["flash"][-1]


def turning_changes_nothing(facts):
    for label in ("predicted", "measured"):
        facts[label]["wave"] = facts[label]["each"] = facts[label]["forward"]


def turning_halves(facts):
    reads, least = facts["predicted"], facts["compulsory"]
    facts["measured"] = {name: [None] * len(least) for name in reads}
    half = [x + (y - x) // 2 for x, y in zip(least, reads["forward"], strict=True)]
    reads["wave"] = reads["each"] = half


def a_measurement_says_otherwise(facts):
    """Where two orders are measured, what is predicted of them no longer counts."""
    for order in ("forward", "wave"):
        facts["measured"][order] = facts["predicted"]["forward"]


def an_l2_for_all(facts):
    for label in ("predicted", "measured"):
        facts[label] = {name: facts["compulsory"] for name in facts[label]}


DOCTORED = (
    ("alternating", turning_changes_nothing, Verdict.FAILS),
    ("alternating", turning_halves, Verdict.HOLDS),
    ("alternating", a_measurement_says_otherwise, Verdict.FAILS),
    ("alternating", an_l2_for_all, Verdict.OPEN),
    ("memory", stored_is_linear, Verdict.FAILS),
    ("linear_traffic", reads_are_linear, Verdict.HOLDS),
    ("linear_traffic", dram_reads_are_quadratic, Verdict.FAILS),
    ("linear_traffic", every_kernel_reads_k_and_v_again, Verdict.FAILS),
    ("speed_up", speed_up_is_n, Verdict.HOLDS),
    ("speed_up", no_times, Verdict.OPEN),
    ("block_rule", the_rule_is_fastest, Verdict.HOLDS),
    ("same_flops", products_are_equal, Verdict.HOLDS),
    ("same_flops", nothing_is_equal, Verdict.FAILS),
    ("online_softmax", tiled_errs_more_in_fp8, Verdict.WHERE),
    ("online_softmax", tiled_overflows, Verdict.FAILS),
    ("training_speed", models_swapped, Verdict.HOLDS),
    ("recompute", memory_is_slow, Verdict.HOLDS),
    ("recompute", memory_is_free, Verdict.FAILS),
    ("softmax_passes", one_more_pass, Verdict.FAILS),
    ("decode", splits_gain_nothing, Verdict.FAILS),
    ("decode", tiling_and_splits_gain, Verdict.HOLDS),
    ("larger_tiles", tiles_read_the_same, Verdict.FAILS),
    ("larger_tiles", larger_is_faster, Verdict.HOLDS),
    ("long_context", no_memory, Verdict.FAILS),
    ("long_context", memory_for_flash_only, Verdict.HOLDS),
)


@pytest.mark.parametrize("name, doctor, verdict", DOCTORED,
                         ids=[doctor.__name__ for _, doctor, _ in DOCTORED])
def test_other_facts_give_another_verdict(found, name, doctor, verdict):
    facts = copy.deepcopy(found[name].facts)
    doctor(facts)
    assert found[name].finding.verdict != verdict
    assert claims.get(name).judge(facts).verdict == verdict


def test_every_claim_is_doctored():
    assert {name for name, _, _ in DOCTORED} == set(NAMES)


def test_a_count_that_changes_in_the_simulator_flips_a_verdict(monkeypatch):
    from hbmeter.experiments.claims import same_flops

    true_count = same_flops.scratchpad.count

    def more_products(program):
        flops = true_count(program).flops
        factor = 3 if program.schedule == "flash2" else 1
        return SimpleNamespace(flops=flops | {"matmul": factor * flops["matmul"]})

    assert claims.judged("same_flops").finding.verdict == Verdict.WHERE
    monkeypatch.setattr(same_flops.scratchpad, "count", more_products)
    assert claims.judged("same_flops").finding.verdict == Verdict.FAILS


@pytest.mark.parametrize("name, reader", (("speed_up", "bench"), ("decode", "bench_decode"),
                                          ("block_rule", "tile_sweep"),
                                          ("larger_tiles", "tile_sweep")))
def test_a_claim_without_its_record_is_undecided(monkeypatch, name, reader):
    from importlib import import_module

    monkeypatch.setattr(import_module(f"hbmeter.experiments.{reader}"), "recorded", list)
    assert claims.judged(name).finding.verdict == Verdict.OPEN


@pytest.mark.parametrize("power", (0, 1, 2.5))
def test_the_fitted_exponent_is_that_of_a_power(power):
    sizes = [1 << i for i in range(4, 12)]
    assert claims.exponent(sizes, [3 * n**power for n in sizes]) == pytest.approx(power, abs=1e-9)


# ---- Command and page -------------------------------------------------------------------------


def test_the_command_prints_one_json_document(capsys):
    assert cli.main(["claims", "5", "7", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [claim["claim"] for claim in document] == [5, 7]
    assert document[0]["verdict"] == "holds where" and document[0]["where"]
    assert {"label", "what", "value", "unit"} == set(document[0]["numbers"][0])


def test_one_claim_is_shown_with_its_numbers(capsys):
    assert cli.main(["claims", "7"]) == 0
    out = capsys.readouterr().out
    assert "does not hold" in out and "published" in out and "17.4 min" in out


@pytest.mark.parametrize("arguments, said", (
    (["14"], "claims are 1 to 13"), (["0"], "claims are 1 to 13"), (["x"], "whole number"),
    (["7", "--html", "nowhere/at/all.html"], "there is no folder"),
    (["7", "--html", "."], "is a folder"), (["7", "--html", ""], "empty"),
))
def test_bad_input_is_one_line(capsys, arguments, said):
    try:
        code = cli.main(["claims", *arguments])
    except SystemExit as stopped:
        code = stopped.code
    captured = capsys.readouterr()
    assert code == 2 and not captured.out
    assert len(captured.err.strip().splitlines()) == 1 and said in captured.err


def test_numbers_that_no_claim_has_are_refused():
    with pytest.raises(InputError, match="claim 99"):
        claims.chosen([1, 99])


def test_the_page_is_self_contained_and_shows_every_number(found, tmp_path):
    text = claims_page.html(list(found.values()))
    assert text.startswith("<!DOCTYPE html>") and "<script" not in text
    assert not re.search(r'(?:src|href)="(?!#)', text) and "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert text.count("<svg") == sum(hasattr(claims.get(name), "plot") for name in NAMES)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    rows = sum(len(claim.finding.numbers) for claim in found.values())
    assert text.count("<tr") >= rows


def test_the_page_escapes_what_is_no_markup(found):
    claim = found["training_speed"]
    finding = replace(claim.finding, because="<b>&", numbers=(Number("published", "<i>", "<u>"),))
    text = claims_page.html([replace(claim, finding=finding)])
    assert "<b>&" not in text and "<i>" not in text and "&lt;u&gt;" in text


@pytest.mark.parametrize("number, words", (
    (Number("counted", "", 1_500_000, "B"), "1.5 MB"), (Number("counted", "", 12), "12"),
    (Number("computed", "", 1.375, "×"), "1.38×"), (Number("predicted", "", 2.5e-4, "s"), "250 µs"),
    (Number("predicted", "", None), "–"), (Number("measured", "", "a"), "a"),
))
def test_numbers_are_written_with_their_unit(number, words):
    assert claims_page.value_words(number) == words
