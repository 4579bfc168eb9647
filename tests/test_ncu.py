"""Are exports of Nsight Compute read right, whatever their page, locale, units and noise?

All texts here are synthetic, in the form that ncu prints.
"""

import string

import pytest
from hbmeter.experiments import ncu, ncu_csv
from hbmeter.experiments.ncu_csv import Profiled, parse, unit_scale
from hbmeter.kernels.errors import Unavailable
from hbmeter.simulator.errors import InputError
from hypothesis import given
from hypothesis import strategies as st

ID = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Block Size", "Grid Size")
LINES = "==PROF== Connected to process 7 (/usr/bin/python3.12)\nepoch 1, loss 2,5\n"


def line(*cells, mark=","):
    return mark.join('"' + str(cell).replace('"', '""') + '"' for cell in cells)


def raw(metrics, *rows, kernel="hbmeter_flash2(const __half *, int)", mark=","):
    """A raw page: ``metrics`` is {name: unit}; each row has the cells of one launch."""
    head = [line(*ID, *metrics, mark=mark), line(*[""] * len(ID), *metrics.values(), mark=mark)]
    places = ("127.0.0.1", kernel, "(256, 1, 1)", "(512, 1, 1)")
    body = [line(i, 7, "python3.12", *places, *row, mark=mark) for i, row in enumerate(rows)]
    return "\n".join(head + body) + "\n"


def only(metric, unit, text):
    return parse(raw({metric: unit}, [text]))[0].metrics[metric]


# ---- Pages ----


def test_raw_page_scaled_decimal_and_program_output_before():  # C22, C23
    text = "epoch 0\n" + LINES + raw(
        {"dram__bytes_read.sum": "Mbyte", "gpu__time_duration.sum": "usecond"},
        ["16.78", "1,234.57"],
    )
    launch, = parse(text)
    assert launch.metrics == {"dram__bytes_read.sum": 16_780_000,
                              "gpu__time_duration.sum": 1_234_570}
    assert abs(16_777_216 - 16_780_000) <= launch.rounding["dram__bytes_read.sum"] == 5_000


def test_lines_between_the_rows_are_not_rows():
    text = raw({"dram__bytes_read.sum": "byte"}, ["1"], ["2"])
    head, units, first, second = text.splitlines()
    noisy = "\n".join([head, "==WARNING== Found outstanding GPU clock reset", units, first,
                       "1,2,3,4,5,6,7,8", '"a quoted word"', "", second, "==PROF== done"])
    assert [x.metrics["dram__bytes_read.sum"] for x in parse(noisy)] == [1, 2]


def test_the_header_may_follow_output_without_a_line_end():
    assert parse("done" + raw({"dram__bytes_read.sum": "byte"}, ["5"]))[0].kernel


def test_details_page_with_ragged_rows_and_rules():  # C21
    head = line(*ID, "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name",
                "Rule Type", "Rule Description")
    kernel = 'void at::f<int, "x", (bool)1>(float const*, int)'

    def row(number, *cells):
        return line(number, 7, "python", "127.0.0.1", kernel, "(1, 1, 1)", "(2, 1, 1)", *cells)

    speed = "GPU Speed Of Light Throughput"
    text = "\n".join([
        LINES, head, row(0, speed, "Elapsed Cycles", "cycle", "12,319,469"),
        row(0, speed, "SM Frequency", "hz", "4,963,609,951.19"),
        row(0, "SpeedOfLight", "", "", "", "Bottleneck", "WRN", "This kernel, ..."),
        row(0, "Occupancy", "Waves Per SM", "", "2.5"),
        row(1, "Command line profiler metrics", "dram__bytes_read.sum", "Kbyte", "1.5"),
    ])
    first, second = parse(text)
    assert first.kernel == kernel and first.function == "at::f"
    assert first.metrics["sm__cycles_elapsed.max"] == 12_319_469
    assert first.metrics["SM Frequency"] == pytest.approx(4_963_609_951.19)
    assert first.metrics["launch__waves_per_multiprocessor"] == 2.5
    assert second.metrics == {"dram__bytes_read.sum": 1500}


def test_short_rows_lack_metrics():
    text = raw({"dram__bytes_read.sum": "byte", "dram__bytes_write.sum": "byte"}, ["7"])
    assert parse(text)[0].metrics == {"dram__bytes_read.sum": 7, "dram__bytes_write.sum": None}


def test_two_exports_in_one_file_are_read_in_turn():
    text = raw({"dram__bytes_read.sum": "Kbyte"}, ["1.5"]) + raw(
        {"other__x.sum": "", "dram__bytes_read.sum": "byte"}, ["3", "9"])
    assert [x.metrics["dram__bytes_read.sum"] for x in parse(text)] == [1500, 9]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_of_any_encoding(tmp_path, encoding):
    path = tmp_path / "export.csv"
    path.write_bytes(raw({"dram__bytes_read.sum": "byte"}, ["5"]).encode(encoding))
    assert ncu_csv.read(path)[0].metrics == {"dram__bytes_read.sum": 5}


def test_a_report_file_is_refused_with_the_command_that_converts_it(tmp_path):
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"NVR\0\0\1")
    with pytest.raises(InputError, match="--import"):
        ncu_csv.read(path)


@pytest.mark.parametrize("kernel, function", [
    ("hbmeter_flash2", "hbmeter_flash2"),
    ("void flash::fwd<Traits<64, 128>, (bool)1>(Params)", "flash::fwd"),
    ("(anonymous namespace)::k(int)", "(anonymous namespace)::k(int)"),
    ('quoted "a", b', "b"),
])
def test_kernel_names_with_commas_quotes_and_brackets(kernel, function):
    launch, = parse(raw({"dram__bytes_read.sum": "byte"}, ["1"], kernel=kernel))
    assert launch.kernel == kernel
    assert launch.function == function


# ---- Numbers ----


@pytest.mark.parametrize("unit, text, value", [
    ("byte", "16,777,216", 16_777_216), ("byte", "16.777.216", 16_777_216),
    ("byte", "1,234", 1234), ("byte", "1.234", 1234), ("", "1.234", 1234),
    ("Mbyte", "16.78", 16_780_000), ("Mbyte", "16,78", 16_780_000),
    ("Gbyte", "1.234,5", 1_234_500_000_000), ("byte", "1 234 567", 1_234_567),
    ("byte", "1\u202f234,0", 1234), ("byte", "1’234’567", 1_234_567),
    ("Kbyte", "0.125", 125), ("byte", "1.5e+03", 1500), ("sector", "12,34,567", 1_234_567),
    ("nsecond", "1,234", 1234), ("byte", "9007199254740993", 9007199254740993),
])
def test_numbers_of_many_locales(unit, text, value):
    assert only("x__y.sum", unit, text) == value


def test_one_telling_cell_decides_for_the_others():
    metrics = {"a__rate.avg": "%", "b__time.avg": "usecond"}
    assert parse(raw(metrics, ["99.5", "1.234"]))[0].metrics["b__time.avg"] == 1234
    assert parse(raw(metrics, ["99,5", "1.234"]))[0].metrics["b__time.avg"] == 1_234_000


def test_a_number_that_may_be_two_is_refused():
    with pytest.raises(InputError, match=r"'1\.234' usecond may mean two numbers"):
        only("b__time.avg", "usecond", "1.234")


def test_numbers_of_two_locales_are_refused():
    with pytest.raises(InputError, match="disagree"):
        parse(raw({"a__x.sum": "byte", "b__x.sum": "byte"}, ["1,234.5", "1.234,5"]))


@pytest.mark.parametrize("text", ["n/a", "N/A", "", "nan", "-nan", "(!) nan", "-"])
def test_not_available_is_none_and_never_0(text):  # C23
    assert only("dram__bytes_read.sum", "byte", text) is None


def test_a_rate_above_100_percent_stays():  # C23
    assert only("lts__t_sector_hit_rate.pct", "%", "100.39") == 100.39


def test_text_values_are_left_out():
    metrics = {"device__attribute_display_name": "", "dram__bytes_read.sum": "byte"}
    assert parse(raw(metrics, ["NVIDIA H200", "1"]))[0].metrics == {"dram__bytes_read.sum": 1}


@pytest.mark.parametrize("unit, scale", [
    ("byte", 1), ("Kbyte", 10**3), ("Mbyte", 10**6), ("Gbyte", 10**9), ("Tbyte", 10**12),
    ("Mibyte", 2**20), ("usecond", 10**3), ("us", 10**3), ("msecond", 10**6), ("second", 10**9),
    ("nsecond", 1), ("hz", 1), ("Ghz", 10**9), ("cycle/nsecond", 10**9), ("Gbyte/second", 10**9),
    ("Kbyte/block", 10**3), ("register/thread", 1), ("%", 1), ("", 1), ("Kinst", 10**3),
    ("sector", 1), ("furlong", 1),
])
def test_units(unit, scale):
    assert unit_scale(unit) == scale


SEPARATORS = {"plain": ("", "."), "en": (",", "."), "de": (".", ","), "fr": ("\u202f", ","),
              "ch": ("’", "."), "comma": ("", ",")}
UNITS = {"byte": 1, "Kbyte": 10**3, "Mbyte": 10**6, "Gbyte": 10**9}


def printed(value, decimals, locale):
    group, mark = SEPARATORS[locale]
    text = f"{value:,.{decimals}f}"
    return text.translate({ord(","): group, ord("."): mark})


@given(
    locale=st.sampled_from(sorted(SEPARATORS)),
    cells=st.lists(st.tuples(st.integers(0, 10**15), st.sampled_from(sorted(UNITS))),
                   min_size=1, max_size=6),
    junk=st.lists(st.text(string.ascii_letters + " .,=;", max_size=20), max_size=3),
)
def test_any_locale_and_unit_round_trips_within_the_rounding(locale, cells, junk):
    """Integers in base units, two decimals in scaled ones, as ncu prints them."""
    metrics = {f"m__{i}.sum": unit for i, (_, unit) in enumerate(cells)}
    row = [printed(value / UNITS[unit], 2, locale) if unit != "byte" else
           printed(value, 0, locale) for value, unit in cells]
    launch, = parse("\n".join(junk) + "\n" + raw(metrics, row))
    for (value, unit), name in zip(cells, metrics, strict=True):
        assert abs(launch.metrics[name] - value) <= launch.rounding[name] + 1e-16 * value
        assert launch.rounding[name] == (0 if unit == "byte" else UNITS[unit] / 200)


# ---- Launches together ----


def launches(*metrics):
    return [Profiled("hbmeter_x", m) for m in metrics]


def test_sums_are_summed_percentages_are_not():
    both = launches({"a__b.sum": 2, "c__d.pct": 50.0}, {"a__b.sum": 3, "c__d.pct": 50.0})
    assert ncu.total(both, "a__b.sum") == 5
    assert ncu.total(both, "c__d.pct") is None
    assert ncu.total(both[:1], "c__d.pct") == 50.0


def test_a_sum_with_a_missing_part_is_missing():
    assert ncu.total(launches({"a__b.sum": 2}, {"a__b.sum": None}), "a__b.sum") is None
    assert ncu.total([], "a__b.sum") is None


def test_the_newer_name_of_a_counter_is_used_when_the_older_is_not_there():  # C23
    one = launches({"dram__bytes_read.sum": None, "dram__bytes_op_read.sum": 7})
    assert ncu.total(one, "dram__bytes_read.sum") == 7


def test_hit_rates_come_from_sums():
    both = launches({ncu.L2_HIT_SECTORS: 90, ncu.L2_MISS_SECTORS: 10},
                    {ncu.L2_HIT_SECTORS: 0, ncu.L2_MISS_SECTORS: 100})
    assert ncu.hit_rate(both) == 0.45
    assert ncu.hit_rate(launches({})) is None


# ---- Failures ----


def test_no_permission_says_what_to_do():  # C24
    text = ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
            "Performance Counters on the target device 0.\n==WARNING== No kernels were profiled.")
    with pytest.raises(Unavailable, match="NVreg_RestrictProfilingToAdminUsers=0"):
        parse(text)


@pytest.mark.parametrize("text, words", [
    ("==WARNING== No kernels were profiled.\n", "no kernels were profiled"),
    ("==ERROR== Failed to find metric regex:foo__bar\n", "foo__bar"),  # C25
    ("hello\n", "no Nsight Compute CSV table"), ("", "no Nsight Compute CSV table"),
    (line(*ID, "a__b.sum") + "\n", "no kernel"),
    ('"ID","Process ID","Metric Name"\n', "Kernel Name"),
])
def test_exports_without_kernels_say_why(text, words):
    with pytest.raises(InputError, match=words):
        parse(text)


def test_metrics_that_were_not_found():  # C25
    text = "==ERROR== Failed to find metric regex:^a__b.sum$\n==ERROR== Failed to find metric c__d"
    assert ncu_csv.missing_metrics(text) == ["a__b.sum", "c__d"]
