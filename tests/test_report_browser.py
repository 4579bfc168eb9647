"""Does a browser show the report: every figure, nothing fetched, nothing said on the console?"""

import html
import json
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from hbmeter.experiments import figures, page, report, style
from hbmeter.hwprofiles import load
from hbmeter.simulator import Attention
from PIL import Image

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
SHOWN = ("comparison", "block_size", "block_heatmap")
SMALL = Attention(batch=1, heads=2, seq=256, head_dim=256)
OUTSIDE = re.compile(r"""(?:src|href|srcset|action)\s*=\s*["']?(?![#"']|data:)"""
                     r"""|url\(\s*["']?(?!#|data:)|@import""")
DARK = "--blink-settings=preferredColorScheme=0"
AA = 4.5  # WCAG 2.2, 1.4.3: least contrast of text

# Written into the page by the test, not by the report: what the browser laid out, drew and asked
# for. Contrast is WCAG's, of each text on the nearest ground that is painted behind it.
PROBE = """<script>addEventListener("load", () => {
  const box = element => element.getBoundingClientRect();
  const all = pattern => [...document.querySelectorAll(pattern)];
  const parse = colour => colour.match(/[0-9.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(x => x / 255)
    .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = element => {
    for (; element; element = element.parentElement) {
      const colour = parse(getComputedStyle(element).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const contrasts = all("body *").filter(element => !element.closest("svg, script") &&
    [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())).map(element => {
      const [a, b] = [parse(getComputedStyle(element).color), ground(element)].map(light);
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.tagName];
    });
  const scrolled = all("body *").filter(element => !element.closest("svg") &&
    element.scrollWidth > element.clientWidth + 1 && element.clientWidth);
  top.document.documentElement.dataset.probe = JSON.stringify({
    width: innerWidth, dark: matchMedia("(prefers-color-scheme: dark)").matches,
    wide: document.documentElement.scrollWidth - innerWidth,
    fetched: performance.getEntriesByType("resource").length,
    figures: Object.fromEntries(all("figure svg").map(svg =>
      [svg.getAttribute("aria-labelledby").split("-title")[0], [box(svg).width, box(svg).height]])),
    contrast: contrasts.reduce((least, one) => one[0] < least[0] ? one : least),
    texts: contrasts.length,
    unreachable: scrolled.filter(one => one.tabIndex < 0).map(one => one.outerHTML.slice(0, 90)),
    unnamed: all("[role=region], svg[role=img]").filter(one => !one.getAttribute("aria-label") &&
      !document.getElementById((one.getAttribute("aria-labelledby") || "").split(" ")[0])).length,
    headings: all("h1, h2, h3, h4, h5, h6").map(one => +one.tagName[1]),
  });
});</script>"""
FRAME = '<!DOCTYPE html><title>frame</title><iframe src="inner.html" width="{}" height="900">'


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder, text) of a small report."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "names", lambda: SHOWN)
        patch.setattr(report, "open_pool", lambda jobs: ThreadPoolExecutor(1))  # as fast for three
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


def probed(tmp_path, text, width, *options):
    """What the probe saw in a frame of that width, the console's lines, and the paths asked for."""
    (tmp_path / "inner.html").write_text(text.replace("</body>", f"{PROBE}</body>"))
    (tmp_path / report.PAGE).write_text(FRAME.format(width))
    dom, log, paths = browse(tmp_path, tmp_path, "--dump-dom", "--window-size=1400,1000", *options)
    found = re.search(r'data-probe="([^"]*)"', dom)
    assert found, "the probe did not run"
    console = [line for line in log.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(found[1])), console, [
        path for path in paths if path != "/favicon.ico"]


def test_the_check_for_requests_sees_them():
    for bad in ('src="a.png"', "href='https://x'", "url(x.woff)", '@import "x"', "src=//x/y"):
        assert OUTSIDE.search(bad), bad
    for good in ('href="#a"', "url(#clip)", 'src="data:image/png;base64,A"'):
        assert not OUTSIDE.search(good), good


def test_nothing_in_the_page_names_another_file(made):
    assert not OUTSIDE.search(made[1])


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1280])
def test_a_reader_sees_every_figure_and_the_console_is_silent(made, tmp_path, width, dark):
    seen, console, paths = probed(tmp_path, made[1], width, *[DARK] * dark)
    assert (seen["width"], seen["dark"]) == (width, dark)
    assert console == []
    assert set(paths) == {f"/{report.PAGE}", "/inner.html"}
    assert seen["fetched"] == 0
    assert seen["wide"] <= 0, "the page scrolls sideways"
    assert set(seen["figures"]) == set(SHOWN)
    for name, (across, down) in seen["figures"].items():
        assert across >= 400 and down >= 150, name
    assert seen["texts"] > 100 and seen["contrast"][0] >= AA, seen["contrast"]
    assert seen["unreachable"] == []  # what scrolls takes the keyboard's focus
    assert seen["unnamed"] == 0
    assert seen["headings"] == [1] + [2] * (len(SHOWN) + 2)


def test_the_probe_sees_what_is_wrong(tmp_path):
    body = page.Html('<img src="gone.png"><script>throw Error("heard")</script>'
                     '<p style="color:#999">pale</p><div role="region"></div><h3>deep</h3>'
                     '<div style="overflow:auto;width:90px"><pre>a line, too long</pre></div>')
    seen, console, paths = probed(tmp_path, page.document("bad", "", body), 400)
    assert seen["fetched"] == 1 and any("gone.png" in path for path in paths)
    assert any("heard" in line for line in console)
    assert seen["contrast"] == [pytest.approx(2.85, abs=0.01), "P"]
    assert seen["unreachable"] and seen["unnamed"] == 1 and seen["headings"] == [3]


def test_text_in_figures_is_dark_enough():
    """Their ground is white in both schemes; their text is black or GREY."""
    parts = [int(style.GREY[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    light = sum(x * weight for x, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))
    assert 1.05 / (light + 0.05) >= AA


def test_a_cell_of_the_block_map_says_why_it_does_not_fit(made):
    """Titles of SVG groups, which browsers show where the pointer rests."""
    tips = re.findall(r"<g><title>(Br \d+, Bc \d+: [^<]*)</title>", made[1])
    assert len(tips) == len(set(tips)) == 256
    assert any(re.search(r"does not fit: [0-9,]+ B of shared memory, 232,448 allowed", tip)
               for tip in tips)
    assert any(re.search(r"does not fit: .*registers", tip) for tip in tips)
    assert any("of shared memory, about" in tip for tip in tips)


def test_it_prints_on_white_with_every_figure_and_without_what_is_folded(made, tmp_path):
    folded = made[1].replace("<details>", "<details open>")
    sizes = []
    for text in (made[1], folded):
        (tmp_path / report.PAGE).write_text(text)
        browse(tmp_path, tmp_path, f"--print-to-pdf={tmp_path / 'p.pdf'}", DARK)
        pdf = (tmp_path / "p.pdf").read_bytes()
        assert pdf.startswith(b"%PDF")
        sizes.append(len(re.findall(rb"/Type\s*/Page\b", pdf)))
    assert len(SHOWN) <= sizes[0] < sizes[1]


@pytest.mark.parametrize("dark", [False, True])
def test_screenshots_are_kept_and_the_dark_one_is_dark(made, tmp_path, dark):
    shot = tmp_path / "report.png"
    browse(tmp_path, made[0], f"--screenshot={shot}", "--window-size=1280,3000", *[DARK] * dark)
    picture = Image.open(shot).convert("L")
    assert picture.size == (1280, 3000) and (picture.getpixel((2, 2)) < 60) == dark
