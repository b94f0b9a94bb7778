"""The report and the site in a real browser: Debian's Chromium, headless, driven by Selenium; skipped where missing.

The site is the one in the folder that ARMS_SITE names: `make browser` builds it.

Screenshots go to the folder that ARMS_SCREENSHOTS names, else to pytest's temporary one.
"""

import base64
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from arms.bench.config import TrainConfig
from arms.bench.report import build_report
from arms.bench.runs.run import Run
from arms.bench.runs.train import train

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAAAAABX3VL4AAAADklEQVR4nGP4z8DAwAAABQEB/6Zp0wAAAABJRU5ErkJggg=="
)
EVIL = "<script>alert(1)<_script><img src=x onerror=alert(2)>"


class Browser:
    """A driver, with access to console messages and requests of the page."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path | str, width: int = 1200, scheme: str = "light") -> None:
        """Open a page with this width and color scheme."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        self.driver.get(page if isinstance(page, str) else page.as_uri())

    def wait(self, script: str) -> None:
        """Wait until a script returns something true."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 20).until(lambda driver: driver.execute_script(script))

    def errors(self) -> list[str]:
        """Return the console messages since the last call."""
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] in ("SEVERE", "WARNING")
        ]

    def requests(self) -> list[str]:
        """Return all requested addresses since the last call."""
        messages = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        sent = [message for message in messages if message["method"] == "Network.requestWillBeSent"]
        return [message["params"]["request"]["url"] for message in sent]

    def screenshot(self, path: Path) -> None:
        """Save a screenshot of the whole page, not only of the window."""
        width, height = self.driver.execute_script(
            "const e = document.documentElement; return [e.clientWidth, e.scrollHeight]"
        )
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
        )
        path.write_bytes(base64.b64decode(shot["data"]))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not CHROMIUM or not DRIVER:
        pytest.skip("needs chromium and chromedriver: apt-get install -y chromium chromium-driver")
    pytest.importorskip("selenium", reason="needs selenium: pip install selenium")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of two real runs, a third that is cut short, and one that has an evil name."""
    folder = tmp_path_factory.mktemp("report")
    for estimator in ("arms", "loorf"):
        config = TrainConfig(
            estimator=estimator,
            steps=60,
            replicas=2,
            latents=10,
            report_every=5,
            evaluate_every=20,
            evaluate_images=20,
        )
        run = train(config, folder / "runs" / estimator, device="cpu")
        (run.path / "samples.png").write_bytes(PICTURE)
    Run(folder / "runs" / EVIL).begin(TrainConfig(dataset=EVIL))
    build_report([folder / "runs"], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("ARMS_SCREENSHOTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_watchers_see_what_they_watch_for(browser: Browser, tmp_path: Path) -> None:
    """A page with console messages and requests is detected, so that the next test is meaningful."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<script>console.error('complaint')</script><img src='http://127.0.0.1:9/picture.png'>"
    )
    browser.open(bad)
    assert any("complaint" in message for message in browser.errors())
    assert any(url.startswith("http://127.0.0.1") for url in browser.requests())


def test_plots_are_drawn_in_silence(browser: Browser, page: Path, pictures: Path) -> None:
    browser.errors(), browser.requests()
    browser.open(page)
    plots = browser.driver.find_elements("css selector", ".plot")
    assert len(plots) == 6
    for plot in plots:
        lines = plot.find_elements("css selector", "[class^=curve-] path")
        drawn = [line.get_attribute("d") or "" for line in lines]
        assert sum("l" in path for path in drawn) == 4  # a line and its band, twice
        keys = plot.find_elements("css selector", "[class^=key-] text")
        assert {text.text for text in keys} == {"arms", "loorf"}
    loaded = "return [...document.images].every(image => image.complete && image.naturalWidth > 0)"
    assert browser.driver.execute_script(loaded)
    assert browser.errors() == []
    assert [
        url for url in browser.requests() if not url.startswith(("file:", "data:", "blob:"))
    ] == []
    browser.screenshot(pictures / "report-light.png")


def test_named_report_is_drawn_in_silence(browser: Browser, pictures: Path) -> None:
    """The page that ARMS_REPORT names, such as the demo's."""
    named = os.environ.get("ARMS_REPORT")
    if not named:
        pytest.skip("ARMS_REPORT names no report")
    browser.errors(), browser.requests()
    browser.open(Path(named).resolve())
    for plot in browser.driver.find_elements("css selector", ".plot"):
        lines = plot.find_elements("css selector", "[class^=curve-] path")
        assert sum("l" in (line.get_attribute("d") or "") for line in lines) >= 2
    assert browser.errors() == []
    assert [
        url for url in browser.requests() if not url.startswith(("file:", "data:", "blob:"))
    ] == []
    browser.screenshot(pictures / "named-report.png")


def test_hovering_shows_values(browser: Browser, page: Path, pictures: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    browser.open(page)
    plot = browser.driver.find_element("css selector", ".plot")
    numbers = json.loads(plot.get_attribute("data-numbers"))
    area = plot.find_element("css selector", ".area")
    ActionChains(browser.driver).move_to_element(area).perform()
    browser.wait("return !document.querySelector('.plot .tip').hidden")
    step, *shown = plot.find_element("css selector", ".tip").text.splitlines()
    middle = sum(numbers["xlim"]) / 2
    nearest = min(numbers["curves"][0]["x"], key=lambda x: abs(x - middle))
    assert step == f"step {nearest}"
    place = numbers["curves"][0]["x"].index(nearest)
    assert shown == [
        f"{curve['name']}: {curve['y'][place]:.2f} ± {curve['std'][place]:.2f}"
        for curve in numbers["curves"]
    ]
    assert len(plot.find_elements("css selector", ".guide")) == 1
    browser.driver.save_screenshot(
        str(pictures / "report-hover.png")
    )  # a shot of the whole page ends the hover
    heading = browser.driver.find_element("css selector", "h1")
    ActionChains(browser.driver).move_to_element(heading).perform()
    browser.wait("return document.querySelector('.plot .tip').hidden")


def display(element: Any) -> str:
    return str(element.value_of_css_property("display"))


@pytest.mark.parametrize("by_keyboard", [False, True])
def test_legend_hides_a_curve(browser: Browser, page: Path, by_keyboard: bool) -> None:
    browser.open(page)
    plot, other = browser.driver.find_elements("css selector", ".plot")[:2]
    key = plot.find_element("css selector", "[role=button].key-1")
    for visible in (False, True):
        if by_keyboard:
            key.send_keys("\n")
        else:
            key.find_element("css selector", "text").click()
        shown = ["inline" if visible else "none"] * 2  # a line and its band
        assert [display(part) for part in plot.find_elements("css selector", ".curve-1")] == shown
        assert display(plot.find_element("css selector", ".curve-0")) == "inline"
        assert display(other.find_element("css selector", ".curve-1")) == "inline"
        assert key.get_attribute("aria-pressed") == str(visible).lower()
    assert browser.errors() == []


def test_figures_need_no_script(browser: Browser, page: Path, tmp_path: Path) -> None:
    static = tmp_path / "static.html"
    static.write_text(re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.DOTALL))
    browser.open(static)
    plots = browser.driver.find_elements("css selector", ".plot svg")
    assert len(plots) == 6
    assert all(plot.is_displayed() and plot.size["height"] > 200 for plot in plots)


def test_dark_page_is_dark(browser: Browser, page: Path, pictures: Path) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    ink = "return getComputedStyle(document.querySelector('.plot text')).fill"
    browser.open(page)
    light = browser.driver.execute_script(background), browser.driver.execute_script(ink)
    browser.open(page, scheme="dark")
    assert browser.driver.execute_script(background) != light[0]
    assert browser.driver.execute_script(ink) != light[1]
    browser.screenshot(pictures / "report-dark.png")


def test_phone_needs_no_sideways_scrolling(browser: Browser, page: Path, pictures: Path) -> None:
    browser.open(page, width=390)
    assert browser.driver.execute_script("return document.documentElement.scrollWidth") <= 390
    browser.screenshot(pictures / "report-phone.png")


def test_evil_names_stay_text(browser: Browser, page: Path) -> None:
    from selenium.common.exceptions import NoAlertPresentException

    browser.open(page)
    with pytest.raises(NoAlertPresentException):
        _ = browser.driver.switch_to.alert.text
    assert EVIL in browser.driver.find_element("css selector", "#problems").text


# ---- the site


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site_folder() -> Path:
    folder = os.environ.get("ARMS_SITE")
    if not folder:
        pytest.skip("needs a built site: make browser")
    return Path(folder)


@pytest.fixture(scope="module")
def site(site_folder: Path) -> Iterator[str]:
    handler = partial(Quiet, directory=str(site_folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


SITE_PAGES = (
    "index",
    "choosing",
    "estimators/expectation/midpoint",
    "reproduced",
    "categorical",
    "api/functions",
)


@pytest.mark.parametrize("name", SITE_PAGES)
def test_pages_of_the_site_fit_and_load_nothing_from_elsewhere(
    browser: Browser, site: str, pictures: Path, name: str
) -> None:
    browser.errors(), browser.requests()
    for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light")):
        browser.open(f"{site}/{name}.html", width, scheme)
        wide, visible = browser.driver.execute_script(
            "return [document.documentElement.scrollWidth, innerWidth]"
        )
        assert wide <= visible
        browser.screenshot(pictures / f"site-{name.replace('/', '-')}-{width}-{scheme}.png")
    assert browser.errors() == []
    asked = browser.requests()
    assert len(asked) > 5
    assert [url for url in asked if url.startswith("http") and not url.startswith(site)] == []


def test_the_site_can_be_searched(browser: Browser, site: str) -> None:
    browser.open(f"{site}/index.html")
    browser.driver.find_element("css selector", "input.sidebar-search").send_keys("systematic\n")
    browser.wait("return document.querySelectorAll('ul.search li').length > 3")


def test_the_site_can_be_searched_without_a_server(browser: Browser, site_folder: Path) -> None:
    page = (site_folder / "search.html").resolve().as_uri()
    browser.open(f"{page}?q=systematic")
    browser.wait("return document.querySelectorAll('ul.search li').length > 3")


def test_formulas_of_the_site_have_their_font(browser: Browser, site: str) -> None:
    browser.open(f"{site}/estimators/expectation/arms.html")
    browser.wait("return document.fonts.check('16px \"STIX Two Math\"')")
    tall = browser.driver.execute_script(
        "return document.querySelector('math mfrac').getBoundingClientRect().height"
    )
    assert tall > 25
