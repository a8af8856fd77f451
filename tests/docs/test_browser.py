"""The documentation's pages in a browser: no errors, nothing loaded from other hosts, readable on a phone."""

import json
import shutil

import pytest

PHONE = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}


@pytest.fixture(scope="module")
def browser():
    driver = shutil.which("chromedriver")
    if driver is None:
        pytest.skip("needs chromedriver and chromium: apt-get install chromium chromium-driver")
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    # As root, as in CI, the browser cannot use its sandbox.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = Chrome(options=options, service=ChromeService(driver))
    yield browser
    browser.quit()


def requests_of(browser) -> list[str]:
    """The addresses that the browser requested since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def pages_to_read(site):
    """All pages, but only one of the listings of sources."""
    listings = sorted(site.glob("source/**/*.html"))
    return [page for page in sorted(site.rglob("*.html")) if page not in listings] + listings[:1]


@pytest.mark.slow
def test_every_page_fits_a_phone_and_asks_nobody(browser, site):
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    requests_of(browser)
    wide, asked = [], []
    for page in pages_to_read(site):
        browser.get(page.as_uri())
        if browser.execute_script("return document.documentElement.scrollWidth") > PHONE["width"]:
            wide.append(page.name)
        asked += [url for url in requests_of(browser) if not url.startswith((site.as_uri(), "data:"))]
    assert (wide, asked) == ([], [])
    assert browser.get_log("browser") == []


@pytest.mark.slow
def test_what_the_browser_does_wrong_is_seen(browser, tmp_path):
    """The browser reports errors; otherwise the other tests of this file could not fail."""
    page = tmp_path / "page.html"
    page.write_text("<img src='http://127.0.0.1:9/x.png'><div style='width:900px'>x</div><script>nothing()</script>")
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    requests_of(browser)
    browser.get(page.as_uri())
    assert "http://127.0.0.1:9/x.png" in requests_of(browser)
    assert any("nothing is not defined" in entry["message"] for entry in browser.get_log("browser"))
    assert browser.execute_script("return document.documentElement.scrollWidth") > PHONE["width"]


@pytest.mark.slow
def test_the_search_finds_an_op(browser, site):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(f"{(site / 'search.html').as_uri()}?q=rms_norm")
    found = WebDriverWait(browser, 20).until(lambda b: b.find_elements(By.CSS_SELECTOR, "#search-results li a"))
    assert any("ops/rms_norm.html" in link.get_attribute("href") for link in found)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_take_the_colour_of_the_page(browser, site, scheme):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get((site / "concept/how-a-call-travels.html").as_uri())
    script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    letters = browser.execute_script(script, ".picture svg text", "fill")
    paper = browser.execute_script(script, "body", "backgroundColor")
    assert abs(brightness(letters) - brightness(paper)) > 120


def brightness(colour: str) -> float:
    """The brightness of `rgb(1, 2, 3)`, from 0 to 255."""
    return sum(float(part) for part in colour.partition("(")[2].rstrip(")").split(",")[:3]) / 3
