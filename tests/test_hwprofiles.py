"""Are the shipped GPU profiles right and sourced, and is every bad file refused in clear words?"""

import json
import re
import subprocess
import sys

import pytest
import yaml
from hbmeter import hwprofiles
from hbmeter.experiments.cli import main
from hbmeter.hwprofiles import FOLDER, ProfileError, document, load, loader, names
from hbmeter.hwprofiles.loader import MAX_BYTES, parse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

GOOD = (FOLDER / "h200.yaml").read_text(encoding="utf-8")

# name: CC, SMs, boost MHz, GB, GB/s, L2 MiB, KiB smem per SM, then dense TFLOP/s
TABLE = """
v100-16gb  7.0   80 1530  16  900   6    96  15.7  -    125    -      -
v100-32gb  7.0   80 1530  32  900   6    96  15.7  -    125    -      -
t4         7.5   40 1590  16  320   4    64  8.1   -    65     -      -
a100-40gb  8.0  108 1410  40 1555  40   164  19.5  156  312    312    -
a100-80gb  8.0  108 1410  80 2039  40   164  19.5  156  312    312    -
a10        8.6   72 1695  24  600   6   100  31.2  62.5 125    125    -
rtx3090    8.6   82 1695  24  936   6   100  35.6  35.6 71     71     -
rtx4090    8.9  128 2520  24 1008  72   100  82.6  82.6 165.2  165.2  330.3
l4         8.9   58 2040  24  300  48   100  30.3  60   121    121    242
l40s       8.9  142 2520  48  864  96   100  91.6  183  362    362    733
h100       9.0  132 1980  80 3350  50   228  67    495  989    989    1979
h100-pcie  9.0  114 1755  80 2000  50   228  51    378  756    756    1513
h200       9.0  132 1980 141 4800  60   228  67    495  989    989    1979
b200      10.0  148 1965 180 7672 126.5 228  75   1125 2250   2250    4500
mi300x  gfx942  304 2100 192 5300  32    64 163.4 653.7 1307.4 1307.4 2614.9
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]

# the limit that launch errors print, by compute capability
BLOCK_MAX = {"7.0": 98304, "7.5": 65536, "8.0": 166912, "8.6": 101376, "8.9": 101376}
BLOCK_MAX |= {"9.0": 232448, "10.0": 232448, "12.0": 101376, "gfx942": 65536}


def refusal(data):
    """The message with which ``data`` (text or bytes) is refused."""
    with pytest.raises(ProfileError) as caught:
        parse(data.encode() if isinstance(data, str) else data, "gpu.yaml")
    return str(caught.value)


def edited(old, new):
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


@pytest.mark.parametrize("name", names())
def test_every_shipped_profile_loads_under_its_file_name(name):
    assert load(name).name == load(name.upper()).name == name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_values_are_those_of_the_vendors_tables(row):
    gpu = load(row[0])
    l2_mib, smem_kib = gpu.l2.size_bytes / 2**20, gpu.smem.bytes_per_sm / 2**10
    clock_mhz, gb, gb_per_s = gpu.boost_clock_hz / 1e6, gpu.hbm_bytes / 1e9, gpu.hbm_bytes_per_s
    cells = [gpu.sm_count, clock_mhz, gb, gb_per_s / 1e9, l2_mib, smem_kib]
    assert gpu.compute_capability == row[1]
    assert cells == pytest.approx([float(cell) for cell in row[2:8]])
    for dtype, cell in zip(("fp32", "tf32", "fp16", "bf16", "fp8"), row[8:], strict=True):
        peak = getattr(gpu.flops, dtype)
        assert peak == (None if cell == "-" else pytest.approx(float(cell) * 1e12)), dtype


@pytest.mark.parametrize("name", names())
def test_numbers_agree_with_each_other(name):
    gpu = load(name)
    lanes = 64 if gpu.compute_capability in ("7.0", "7.5", "8.0") else 128  # FP32 FMAs a clock
    assert gpu.flops.fp32 == pytest.approx(gpu.sm_count * lanes * 2 * gpu.boost_clock_hz, rel=0.02)
    assert gpu.smem.bytes_per_block_max == BLOCK_MAX[gpu.compute_capability]
    reserved = 1024 if gpu.vendor == "nvidia" and float(gpu.compute_capability) >= 8 else 0
    assert gpu.smem.reserved_bytes_per_block == reserved
    assert gpu.smem.bytes_per_block_max + reserved == gpu.smem.bytes_per_sm
    assert gpu.max_warps_per_sm * gpu.warp_size == gpu.max_threads_per_sm


def test_h200_is_what_its_driver_reports():
    gpu = load("h200")
    assert (gpu.l2.size_bytes, gpu.l2.partitions, gpu.registers_per_sm) == (62_914_560, 2, 65_536)
    assert (gpu.smem.bytes_per_sm, gpu.smem.bytes_per_block_max) == (233_472, 232_448)
    assert 4e12 < gpu.measured["hbm_copy"].value < gpu.hbm_bytes_per_s


@pytest.mark.parametrize("name", names())
def test_every_number_names_its_source(name):
    numeric = re.compile(r'\s*\w+: "?[-+.]?\d')
    for line in (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        if numeric.match(line) and not line.strip().startswith(("date:", "how:")):
            assert re.search(r"  # source: \S.+ \[[RSM]\]$", line), line


def test_aliases_lead_to_one_profile_each():
    spellings = {}
    for name in names():
        for spelling in (name, *load(name).aliases):
            key = re.sub(r"[\s_-]+", "", spelling.lower())
            assert spellings.setdefault(key, name) == name, spelling
            assert load(spelling).name == name
    typed = "a100=a100-80gb h100-sxm=h100 V100=v100-16gb h200-sxm=h200 RTX_3090=rtx3090"
    for pair in typed.split():
        spelling, name = pair.split("=")
        assert load(spelling).name == name
    assert load("NVIDIA H100 80GB HBM3").name == "h100"  # as the driver calls it


def test_unknown_name_suggests_the_nearest_and_lists_all():
    with pytest.raises(ProfileError, match=r"'h20'; did you mean 'h200'\? \(valid: a10, .*v100"):
        load("h20")
    for other in (7, None, "", "no such gpu", "x" * 10**6):
        with pytest.raises(ProfileError):
            load(other)


def test_a_file_that_changed_is_read_anew(tmp_path):
    path, text = tmp_path / "mine.yaml", (FOLDER / "t4.yaml").read_text()
    path.write_text(text)
    before = load(path)
    path.write_text(text.replace("sm_count: 40", "sm_count: 20"))
    assert (before.sm_count, load(path).sm_count) == (40, 20)


def test_a_direct_name_parses_one_file_once(monkeypatch):
    seen = []
    original = document.read
    monkeypatch.setattr(document, "read", lambda *args: seen.append(1) or original(*args))
    loader.parse.cache_clear()
    for _ in range(2):
        load("h200")
    assert len(seen) == 1


def test_import_alone_is_light():
    code = "import sys, hbmeter.hwprofiles as h; h.names(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "hbmeter.hwprofiles" in loaded.split()
    assert not {"pydantic", "yaml", "numpy"} & set(loaded.split())


def test_a_users_file_is_read_by_path(tmp_path):
    path = tmp_path / "mine.YAML"
    path.write_text(edited("name: h200", "name: mine"), encoding="utf-8")
    assert load(path).name == load(str(path)).name == "mine"
    (tmp_path / "no-suffix").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())  # a byte order mark
    assert load(str(tmp_path / "no-suffix")) == load("h200")


def test_all_mistakes_are_told_at_once_with_lines():
    text = edited("sm_count: 132", "sm_cuont: 132").replace("62_914_560", "60 MiB")
    text = text.replace("warp_size: 32", "warp_size: true").replace("4.8e12", "4800")
    text = text.replace("sector_bytes: 32", "sector_bytes: 48") + "name: again\n"
    lines = refusal(text).splitlines()
    where = {key: i for i, line in enumerate(text.splitlines(), 1) for key in [line.split(":")[0]]}
    for key, number, wanted in [
        ("sm_count", 1, "missing"),
        ("sm_cuont", where["sm_cuont"], "unknown key; did you mean 'sm_count'?"),
        ("hbm_bytes_per_s", where["hbm_bytes_per_s"], "got 4800; .*1000000000.*not GB/s"),
        ("l2.sector_bytes", where["  sector_bytes"], r"got 48; must divide line_bytes \(128\)"),
        ("l2.size_bytes", where["  size_bytes"], "got '60 MiB'; should be a whole number"),
        ("warp_size", where["warp_size"], "got True; should be a whole number"),
        ("name", len(text.splitlines()), "key given twice, first in line 4"),
    ]:
        pattern = rf"gpu\.yaml:{number}: {re.escape(key)}: {wanted}"
        assert any(re.match(pattern, line) for line in lines), (pattern, lines)
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("4.8e12", ".nan", "finite"),
        ("4.8e12", ".inf", "finite"),
        ("4.8e12", "1e999", "finite"),
        ("4.8e12", "-4.8e12", "greater than"),
        ("4.8e12", '"4.8e12"', "without unit or quotes"),
        ("1.41e11", "0", "greater than"),
        ("1.41e11", "1.5e6000", "hbm_bytes"),
        ('"9.0"', "9.0", "in quotes"),
        ("vendor: nvidia", "vendor: amd", "not one of vendor amd"),
        ("bytes_per_block_max: 232_448", "bytes_per_block_max: 233_472", r"at most .*\(232448\)"),
        ("max_blocks_per_sm: 32", "max_blocks_per_sm: 65", r"\(64\)"),
        ("registers_per_sm: 65_536", "registers_per_sm: 65_000", r"multiple of .*\(1024\)"),
        ("  fp8: 1.979e15", "  fp7: 1", r"flops.fp7: unknown key; did you mean 'fp"),
        ("tile_cycles: 362", "tile_cycles: 1e308", "l2.tile_cycles: got 1e.308; .*1000000"),
        ("  hbm: 479", "  hbm: 1e7", "latency_cycles.hbm: got 10000000.0; .*1000000"),
        ("value: 657.8", "value: 1e308", "hbm_latency.value: got 1e.308; must be at most 1"),
        ("value: 4.29e+12", "value: 4290", "hbm_copy.value: got 4290; .*1000000 bytes/s"),
        ("tile_bytes_per_clock: 103.9", "tile_bytes_per_clock: 1e-300", "l2.tile_bytes_per_clock"),
        ("[395, 451,", "[395, 351,", "dram_late_cycles: got .*; must not fall from one"),
        (", 870, 983.5]", ", 870]", "dram_late_cycles: got .*; should have at least 11 items, not"),
        ("  hbm_copy:", "  HBM copy:", "pattern"),
        ("date: 2026-11-30\n    how: the driver", "date: today\n    how: the driver",
         "measured.hbm_copy.date"),
    ],
)
def test_a_wrong_value_is_named(old, new, wanted):
    assert re.search(wanted, refusal(edited(old, new)))


@pytest.mark.parametrize("item", ["-451", "1e308", "late"])
def test_a_wrong_item_of_a_list_is_one_mistake(item):
    """Not a list that is too short besides."""
    (line,) = refusal(edited("[395, 451,", f"[395, {item},")).splitlines()
    assert re.search(r"gpu\.yaml:\d+: l2\.dram_late_cycles\.1: got ", line)


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("curve_of: sms\n    curve: [[1, 2], [1, 4]]", "rising first numbers"),
        ("curve_of: sms\n    curve: [[1, 2]]", "two pairs or more"),
        ("curve_of: sms\n    curve: [[1, 2], [3, -4]]", r"curve\.1\.1: got -4.*greater than 0"),
        ("curve_of: sms\n    curve: 7", "list in square brackets"),
        ("curve: [[1, 2], [3, 4]]", "needs curve_of beside it"),
    ],
)
def test_a_wrong_curve_is_named(lines, wanted):
    good = "curve_of: sms\n    curve: [[1, 2], [3, 4]]"
    entry = f"  made_up:\n    value: 2\n    unit: x\n    {good}\n    how: made up\n"
    assert parse((GOOD + entry).encode(), "x").measured["made_up"].curve == ((1, 2), (3, 4))
    assert re.search(wanted, refusal(GOOD + entry.replace(good, lines)))


@pytest.mark.parametrize(
    "number", ["4.8e12", "4.8e+12", "48E11", "4800000000000", "4_800_000_000_000"]
)
def test_numbers_may_be_written_as_in_yaml_1_2(number):
    assert parse(edited("4.8e12", number).encode(), "x").hbm_bytes_per_s == 4.8e12
    whole = parse(edited("hbm_bytes: 1.41e11", f"hbm_bytes: {number}").encode(), "x").hbm_bytes
    assert whole == 4_800_000_000_000 and isinstance(whole, int)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "empty"),
        ("# only a comment\n", "empty"),
        ("- 1\n", "mapping"),
        ("h200", "mapping"),
        (GOOD + "---\nname: b\n", "second document"),
        ("a: [1, 2", r"gpu.yaml:\d: not valid YAML"),
        ("a: &x [1]\nb: *x\n", "gpu.yaml:2: YAML aliases"),
        ("a: &x [*x]\n", "aliases"),
        ("a: !!python/object/apply:os.system [ls]\n", "tags"),
        ("a: !x 1\n", "tags"),
        ("? [a]\n: 1\n", "plain word"),
        ("<<: {name: h200}\n", "<<: unknown key"),
        ('"a\\nb": 1\n', r"'a\\nb': unknown key"),
        ("a: " + "[" * 50_000, "levels deep|nesting depth"),
        ("- " * 50_000, "mapping"),
        ("{a: " * 5_000, "levels deep"),
        ("a: \x00", "not valid YAML"),
        ("sm_count: " + "9" * 100_000, "got '999"),
        (b"name: \xff\xfe", "not UTF-8"),
        ("\n".join(f"k{i}: 1" for i in range(20_000)), "more mistakes"),
    ],
    ids=range(20),
)
@pytest.mark.parametrize("parser", ["CSafeLoader", "SafeLoader"])
def test_hostile_documents_are_refused_in_few_words(text, wanted, parser, monkeypatch):
    monkeypatch.setattr(document, "_PARSER", getattr(yaml, parser, yaml.SafeLoader))
    message = refusal(text)
    assert re.search(wanted, message) and len(message) < 20_000


def test_files_that_are_none_are_refused(tmp_path):
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * (MAX_BYTES + 1))
    wanted = {"missing.yaml": "No such file", ".": "folder", "big.yaml": "larger"}
    for name, words in (wanted | {"\0.yaml": "null byte"}).items():
        with pytest.raises(ProfileError, match=words):
            load(f"{tmp_path}/{name}")


def survives(data):
    try:
        parse(data, "gpu.yaml")
    except ProfileError as error:
        assert str(error).startswith("gpu.yaml")


FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@FUZZ
@given(st.text(max_size=200) | st.text("{}[]:,&*!|>-?#%@`'\" \n\tab1.", max_size=60))
def test_random_text_only_raises_profile_error(text):
    survives(text.encode("utf-8", "replace"))


@FUZZ
@given(st.data())
def test_random_edits_only_raise_profile_error(data):
    start = data.draw(st.integers(0, len(GOOD)))
    length = data.draw(st.integers(0, 200))
    piece = data.draw(st.binary(max_size=8) | st.text(max_size=20).map(lambda s: s.encode()))
    survives(GOOD[:start].encode() + piece + GOOD[start + length :].encode())


def test_files_with_mistakes_are_told_and_the_others_listed(tmp_path, monkeypatch, capsys):
    """One broken file of the folder neither hides the others nor goes unnoticed."""
    (tmp_path / "h200.yaml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "mine.yaml").write_text("name: [1\n", encoding="utf-8")
    (tmp_path / "two.yaml").write_text("name: two\nfull_name: 3\n", encoding="utf-8")
    for module in (hwprofiles, loader):
        monkeypatch.setattr(module, "FOLDER", tmp_path)
    assert main(["gpus", "--json"]) == 2
    out, err = capsys.readouterr()
    assert [gpu["name"] for gpu in json.loads(out)] == ["h200"]
    lines = err.splitlines()
    assert len(lines) == 2 and "mine.yaml" in lines[0] and "two.yaml" in lines[1]
    assert "hbmeter gpus two" in lines[1]
    assert load(load("h200").aliases[0]).name == "h200"
    assert main(["gpus"]) == 2 and "h200" in capsys.readouterr().out
    with pytest.raises(ProfileError, match="unknown GPU 'tow'; did you mean 'two'"):
        load("tow")
