"""Does a browser show the report: every figure, nothing fetched, nothing said on the console?"""

import re
import shutil
import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from hbmeter.experiments import figures, page, report
from hbmeter.hwprofiles import load
from hbmeter.simulator import Attention

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
SHOWN = ("comparison", "block_size")
SMALL = Attention(batch=1, heads=2, seq=256, head_dim=64)
OUTSIDE = re.compile(r"""(?:src|href|srcset|action)\s*=\s*["']?(?![#"']|data:)"""
                     r"""|url\(\s*["']?(?!#|data:)|@import""")

# Written into the page by the test, not by the report: what the browser laid out and asked for.
PROBE = """<script>addEventListener("load", () => {
  const box = element => element.getBoundingClientRect();
  const sizes = [...document.querySelectorAll("figure svg")].map(
    svg => `${svg.getAttribute("aria-labelledby").split("-title")[0]}:` +
           `${Math.round(box(svg).width)}x${Math.round(box(svg).height)}`);
  const wide = document.documentElement.scrollWidth - innerWidth;
  const fetched = performance.getEntriesByType("resource").length;
  document.documentElement.dataset.probe = `wide=${wide} fetched=${fetched} ${sizes.join(" ")}`;
});</script>"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder, text) of a small report."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "names", lambda: SHOWN)
        gpu = load("h200")
        text = report.html(report.run_all(SMALL, gpu, folder), SMALL, gpu, {"command": "test"})
    (folder / report.PAGE).write_text(text)
    return folder, text


class Heard(SimpleHTTPRequestHandler):
    """Serves a folder; its server keeps the paths that were asked for."""

    def log_message(self, *_):
        self.server.paths.append(self.path)


def browse(tmp_path, folder, *options):
    """(stdout, stderr, paths asked for) of Chromium on a folder's page; no other host is there."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Heard, directory=str(folder)))
    server.paths = []
    Thread(target=server.serve_forever, daemon=True).start()
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               "--enable-logging=stderr", "--no-proxy-server",
               "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
               f"--user-data-dir={tmp_path / 'profile'}", *options,
               f"http://127.0.0.1:{server.server_port}/{report.PAGE}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr, server.paths


def probed(tmp_path, text, width):
    """What the probe saw at a window's width, the console's lines, and the paths asked for."""
    (tmp_path / report.PAGE).write_text(text.replace("</body>", f"{PROBE}</body>"))
    dom, log, paths = browse(tmp_path, tmp_path, "--dump-dom", f"--window-size={width},900")
    found = re.search(r'data-probe="([^"]*)"', dom)
    assert found, "the probe did not run"
    console = [line for line in log.splitlines() if "CONSOLE" in line]
    return found[1], console, [path for path in paths if path != "/favicon.ico"]


def test_the_check_for_requests_sees_them():
    for bad in ('src="a.png"', "href='https://x'", "url(x.woff)", '@import "x"', "src=//x/y"):
        assert OUTSIDE.search(bad), bad
    for good in ('href="#a"', "url(#clip)", 'src="data:image/png;base64,A"'):
        assert not OUTSIDE.search(good), good


def test_nothing_in_the_page_names_another_file(made):
    assert not OUTSIDE.search(made[1])


@pytest.mark.parametrize("width", [500, 1280])
def test_every_figure_is_visible_and_the_console_is_silent(made, tmp_path, width):
    seen, console, paths = probed(tmp_path, made[1], width)
    assert console == []
    assert set(paths) == {f"/{report.PAGE}"}
    wide, fetched, *sizes = seen.split()
    assert fetched == "fetched=0"
    assert int(wide.removeprefix("wide=")) <= 0, "the page scrolls sideways"
    shown = dict(entry.split(":") for entry in sizes)
    assert set(shown) == set(SHOWN)
    for name, size in shown.items():
        across, down = map(int, size.split("x"))
        assert across >= 400 and down >= 150, (name, size)


def test_the_probe_hears_errors_and_requests(tmp_path):
    body = page.Html('<img src="gone.png"><script>throw Error("heard")</script>')
    seen, console, paths = probed(tmp_path, page.document("bad", "", body), 1280)
    assert "fetched=1" in seen
    assert any("gone.png" in path for path in paths)
    assert any("heard" in line for line in console)


def test_a_screenshot_is_kept(made, tmp_path):
    shot = tmp_path / "report.png"
    browse(tmp_path, made[0], f"--screenshot={shot}", "--window-size=1280,3000")
    assert shot.read_bytes().startswith(b"\x89PNG") and shot.stat().st_size > 50_000
