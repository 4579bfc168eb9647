"""Does a sweep end with the same rows, whoever computes and whatever is killed, shared or full?"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from hbmeter.experiments import cluster, progress
from hbmeter.experiments.cli import main
from hbmeter.kernels.errors import Unavailable
from hbmeter.simulator.errors import InputError
from hbmeter.simulator.sweeps import pool, runner, spec, store, table

SHAPES = {"batch": 1, "heads": 2, "head_dim": 64, "engine": "scratchpad"}
MANY = {"common": SHAPES, "grid": {"schedule": ["flash1", "flash2"],
                                   "seq": list(range(256, 4096, 256)),
                                   "br": [16, 32, 64, 128], "bc": [16, 32, 64, 128]}}


def swept(source, folder, **how) -> runner.Outcome:
    folder.mkdir(exist_ok=True)
    return runner.run(spec.read(source), folder, **how)


def written(folder, source) -> Path:
    path = folder / "spec.yaml"
    path.write_text(json.dumps(source), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """MANY's rows, computed here without interruption."""
    folder = tmp_path_factory.mktemp("many")
    swept(MANY, folder)
    return table.rows(folder)


def test_rows_do_not_depend_on_the_number_of_processes(tmp_path, many):
    swept(MANY, tmp_path, jobs=3)
    assert table.rows(tmp_path) == many


def test_a_process_that_dies_is_replaced(tmp_path, many, monkeypatch):
    opened = []
    monkeypatch.setattr(runner, "open_pool",
                        lambda jobs: opened.append(pool.open_pool(jobs)) or opened[-1])
    killed = []

    def kill_one(done, total):
        if 0 < done < total and not killed:
            killed.append(next(iter(opened[0]._processes)))
            os.kill(killed[0], signal.SIGKILL)

    swept(MANY, tmp_path, jobs=2, on_progress=kill_one)
    assert killed and len(opened) == 2
    assert table.rows(tmp_path) == many


class _Dying:
    """Pools whose processes all die at once."""

    def __enter__(self):
        return self

    def __exit__(self, *what):
        return False

    def submit(self, *task):
        future = Future()
        future.set_exception(BrokenProcessPool())
        return future


def test_processes_that_always_die_are_told_in_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "open_pool", lambda jobs: _Dying())
    with pytest.raises(InputError, match="die again and again"):
        swept(MANY, tmp_path, jobs=2)


class _OtherCode:
    """An executor whose workers have another version of hbmeter."""

    def submit(self, *task):
        future = Future()
        future.set_result(("0123456789abcdef", []))
        return future


def test_workers_with_other_code_are_refused(tmp_path):
    with pytest.raises(InputError, match="a worker runs other code"):
        swept(MANY, tmp_path, executor=_OtherCode())
    assert table.rows(tmp_path) == []


def command(*argv) -> list[str]:
    return [sys.executable, "-m", "hbmeter.experiments.cli", *map(str, argv)]


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_at_random_moments_it_resumes_to_the_same_rows(tmp_path, request):
    kills, seed = request.config.getoption("--kills"), random.randrange(10**6)
    rng = random.Random(seed)
    source = {
        "common": SHAPES | {"engine": "l2", "br": [32, 64], "bc": [32, 64]},
        "grid": {"seq": list(range(512, 3072, 256)), "heads": list(range(4, 4 + max(kills, 10)))}}
    path = written(tmp_path, source)
    whole, out = tmp_path / "whole", tmp_path / "out"
    swept(source | {"grid": {"seq": 512}}, tmp_path / "one")  # compiles, where that is to be done
    began = time.monotonic()
    swept(path, whole)
    work_s = time.monotonic() - began
    start_s = timed(command("sweep", path, "--out", whole))
    before, deaths = 0, 0
    for number in range(kills):
        process = subprocess.Popen(
            command("sweep", path, "--out", out, "--jobs", 1 + number % 2),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(start_s / 2, 2 * start_s + 2 * work_s / kills))
        workers = children(process.pid)
        process.kill()
        deaths += process.wait() == -signal.SIGKILL
        assert gone(workers), "worker processes outlive the sweep"
        rows = len(table.rows(out, everything=True)) if (out / store.FILE).exists() else 0
        assert rows >= before, seed
        before = rows
    assert deaths, "every kill came after the end"
    done = subprocess.run(command("sweep", path, "--out", out, "--jobs", "2", "--json"),
                          capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["found"] == before, seed
    assert done.stderr == ""  # no progress where there is no terminal
    assert table.rows(out) == table.rows(whole)
    assert len(table.rows(out, everything=True)) == len(table.rows(whole))
    assert store.read_only(out).execute("PRAGMA integrity_check").fetchone() == ("ok",)
    print(f"{deaths} of {kills} kills before the end, {before} rows before the last run")


def timed(argv) -> float:
    began = time.monotonic()
    subprocess.run(argv, check=True, capture_output=True)
    return time.monotonic() - began


def children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split()]


def gone(pids, within_s=10.0) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if not any(_alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# ---- Dask ----

def test_dask_gives_the_same_rows_though_a_worker_dies(tmp_path, many):
    pytest.importorskip("distributed")
    killed = []
    with cluster.open_dask("local:2") as (executor, jobs):
        def kill_one(done, total):
            if 0 < done < total and not killed:
                killed.extend(executor._client.run(os.getpid).values())
                os.kill(killed[0], signal.SIGKILL)

        swept(MANY, tmp_path, jobs=jobs, executor=executor, on_progress=kill_one)
    assert len(killed) == 2
    assert table.rows(tmp_path) == many


@pytest.mark.parametrize("address", ["local", "local:0", "local:x", "no address", "host", ""])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(InputError, match="is no address"), cluster.open_dask(address):
        pass


def test_without_dask_the_remedy_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(Unavailable, match="pip install"), cluster.open_dask("local:2"):
        pass


def test_a_scheduler_that_is_lost_is_told_in_a_line():
    pytest.importorskip("distributed")
    with pytest.raises(Unavailable, match="the scheduler is lost; rows so far are kept"), \
            cluster.open_dask("local:1") as (executor, _):
        running = executor.submit(time.sleep, 60)
        executor._client.cluster.close()
        running.result()


def test_a_scheduler_that_does_not_answer_is_told_in_a_line(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.5)
    with pytest.raises(Unavailable, match="no scheduler answers"), \
            cluster.open_dask("tcp://127.0.0.1:9"):
        pass


# ---- The file ----

def test_a_second_sweep_of_a_folder_is_refused_in_a_line(tmp_path, capsys):
    path = written(tmp_path, MANY)
    with store.Store(tmp_path):
        assert main(["sweep", str(path), "--out", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert "another sweep is writing to" in captured.err
    assert main(["sweep", str(path), "--out", str(tmp_path), "--jobs", "1"]) == 0


def test_a_table_can_be_read_while_a_sweep_writes(tmp_path):
    seen = []
    swept(MANY, tmp_path, on_progress=lambda done, total: seen.append(
        len(table.rows(tmp_path, everything=True))))
    assert seen[0] == 0 and seen == sorted(seen)


def test_a_full_disk_is_a_line_and_rows_so_far_are_kept(tmp_path, monkeypatch):
    """SQLite's own limit of pages gives the error that a full disk gives."""
    monkeypatch.setattr(store, "COMMIT_SECONDS", 0.0)
    opened = store.Store.__init__

    def limited(self, folder):
        opened(self, folder)
        self._file.execute("PRAGMA max_page_count = 60")

    with monkeypatch.context() as patch:
        patch.setattr(store.Store, "__init__", limited)
        with pytest.raises(InputError, match="disk is full") as caught:
            swept(MANY, tmp_path)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)
    kept = len(table.rows(tmp_path, everything=True))
    assert kept > 0
    assert swept(MANY, tmp_path).found == kept


@pytest.mark.parametrize("content", [b"not a database at all" * 100, None])
def test_a_file_that_is_not_ours_is_left_alone(content, tmp_path):
    path = tmp_path / store.FILE
    if content is None:
        sqlite3.connect(path).execute("CREATE TABLE theirs (x)").connection.close()
        content = path.read_bytes()
    path.write_bytes(content)
    for use in (lambda: swept(MANY, tmp_path), lambda: table.rows(tmp_path)):
        with pytest.raises(InputError, match="not the file of a sweep"):
            use()
    assert path.read_bytes() == content


def test_a_file_of_a_later_format_is_refused(tmp_path):
    swept({"points": [{"seq": 64, "engine": "scratchpad"}]}, tmp_path)
    with sqlite3.connect(tmp_path / store.FILE) as file:
        file.execute("PRAGMA user_version = 99")
    with pytest.raises(InputError, match="format 99"):
        table.rows(tmp_path)


@pytest.mark.parametrize("argv", [["--jobs", "0"], ["--jobs", "-2"], ["--dask", "nowhere"]])
def test_bad_options_are_a_line(argv, tmp_path, capsys):
    path = written(tmp_path, MANY)
    assert main(["sweep", str(path), "--out", str(tmp_path / "out"), *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and argv[1] in captured.err


def test_a_folder_that_cannot_be_made_is_a_line(tmp_path, capsys):
    path = written(tmp_path, MANY)
    assert main(["sweep", str(path), "--out", str(path / "inside")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# ---- Progress ----

class _Terminal(list):
    """A stream that a person watches."""

    def isatty(self):
        return True

    def write(self, text):
        self.append(text)

    def flush(self):
        pass


def test_a_terminal_sees_a_bar_with_rate_and_time_left(monkeypatch):
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    terminal = _Terminal()
    bar = progress.Progress(terminal)
    bar.start("sweep", 400)
    now = 10.0
    bar.done(100)
    assert "[######..................] 100 of 400, 10 a second, 30 s left" in "".join(terminal)
