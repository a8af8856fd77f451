"""The page of `devtool report` in headless Chromium: light and dark, on a phone, by keyboard, without a network."""

import itertools
import shutil

import pytest

WIDTHS = {"phone": 360, "tablet": 768, "desktop": 1280}
# Everything that Tab must reach: links, foldable parts, scrollable parts.
REACHABLE = "a[href], summary, [tabindex='0']"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    driver = shutil.which("chromedriver")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if driver is None or chromium is None:
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync",
                     "disable-background-networking", "disable-component-update", "disable-dev-shm-usage"):  # fmt: skip
        options.add_argument(f"--{argument}")
    session = webdriver.Chrome(options=options, service=Service(driver))
    yield session
    session.quit()


@pytest.fixture
def show(browser, report_page):
    """Opens the page for a device and a colour scheme; `unfold` opens all folded parts."""

    def open_page(device: str = "desktop", scheme: str = "light", *, unfold: bool = True):
        size = {"width": WIDTHS[device], "height": 800, "deviceScaleFactor": 1, "mobile": device == "phone"}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get(report_page.page.as_uri())
        if unfold:
            browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
        return browser

    return open_page


def test_nothing_is_loaded_and_nothing_complains(show):
    browser = show()
    assert browser.title.startswith("pyxla ops")
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    # A browser requests the icon of a served page by itself.
    assert loaded == [] and [entry for entry in browser.get_log("browser") if "favicon" not in entry["message"]] == []
    assert browser.execute_script("return document.scripts.length") == 0


@pytest.mark.parametrize("unfold", [False, True], ids=["folded", "unfolded"])
@pytest.mark.parametrize("device", WIDTHS)
def test_no_page_is_wider_than_its_window(show, device, unfold):
    browser = show(device, unfold=unfold)
    page, window = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert window == WIDTHS[device] and page <= window
    if device == "phone" and unfold:
        boxes = browser.execute_script(
            "return [...document.querySelectorAll('.scroll')].map(b => [b.clientWidth, b.scrollWidth])"
        )
        assert sum(inside > outside for outside, inside in boxes) >= 5  # some parts would be too wide


# Contrast as WCAG 2 defines it, of every text against the nearest painted background.
CONTRAST = """
const channels = c => { const n = c.match(/[\\d.]+/g).map(Number), scale = c.startsWith('color(') ? 255 : 1;
  return [...n.slice(0, 3).map(v => v * scale), n.length > 3 ? n[3] : 1]; };
const light = c => c.slice(0, 3).map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const behind = e => { for (; e; e = e.parentElement) {
  const c = channels(getComputedStyle(e).backgroundColor); if (c[3] > 0) return c; } return [255, 255, 255, 1]; };
const found = [], seen = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (seen.nextNode()) {
  const text = seen.currentNode, e = text.parentElement;
  if (!text.data.trim() || !e.checkVisibility() || ['TITLE', 'STYLE'].includes(e.tagName.toUpperCase())) continue;
  const style = getComputedStyle(e), inBox = e.closest('.hlo .call');
  const back = inBox ? channels(getComputedStyle(inBox.querySelector('rect')).fill) : behind(e);
  const [a, b] = [light(channels(e.closest('svg') ? style.fill : style.color)), light(back)];
  found.push([(Math.max(a, b) + .05) / (Math.min(a, b) + .05), text.data.trim()]);
}
return [found.length, found.filter(f => f[0] < 4.5), light(behind(document.body))];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_schemes(show, scheme):
    count, faint, paper = show("desktop", scheme).execute_script(CONTRAST)
    assert count > 300 and faint == []
    assert paper > 0.9 if scheme == "light" else paper < 0.02


def test_plots_follow_the_scheme(show):
    def colours(scheme):
        script = """return ['.accuracy .dot', '.roof', '.hlo .call rect', '.tick', '.mix i'].map(s => {
          const style = getComputedStyle(document.querySelector(s));
          return [style.fill, style.stroke, style.backgroundColor].join(); })"""
        return show("desktop", scheme).execute_script(script)

    assert all(light != dark for light, dark in zip(colours("light"), colours("dark"), strict=True))


def focused(browser) -> tuple:
    """Number of the focused element, style and width of its outline, and whether it is in the window."""
    script = """const e = document.activeElement, s = getComputedStyle(e), r = e.getBoundingClientRect();
      return [[...document.querySelectorAll(arguments[0])].indexOf(e), s.outlineStyle, parseFloat(s.outlineWidth),
        r.bottom > 0 && r.top < innerHeight && r.right > 0 && r.left < innerWidth]"""
    return tuple(browser.execute_script(script, REACHABLE))


@pytest.mark.parametrize("device", ["phone", "desktop"])
def test_tab_reaches_everything_in_order_and_shows_where_it_is(show, device):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser = show(device)
    browser.execute_script("document.documentElement.style.scrollBehavior = 'auto'")
    script = "return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).length"
    count = browser.execute_script(script, REACHABLE)
    assert count > 20
    for number in range(count):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        place, outline, width, in_view = focused(browser)
        assert (place, in_view) == (number, True) and outline != "none" and width >= 2, f"stop {number}"


def test_keys_skip_fold_and_scroll(show):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    browser = show("phone", unfold=False)
    ActionChains(browser).send_keys(Keys.TAB, Keys.ENTER).perform()
    assert browser.execute_script("return document.activeElement.tagName") == "MAIN"
    folded = browser.find_element("css selector", "#simple_add summary")
    browser.execute_script("arguments[0].focus()", folded)
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    assert browser.execute_script("return arguments[0].parentElement.open", folded)
    box = browser.find_element("css selector", "#summary .scroll")
    browser.execute_script("arguments[0].focus()", box)
    ActionChains(browser).send_keys(Keys.ARROW_RIGHT).perform()
    # The browser scrolls smoothly and at its own pace.
    WebDriverWait(browser, 10).until(lambda b: b.execute_script("return arguments[0].scrollLeft", box) > 0)


def test_structure_is_there_for_who_cannot_see(show):
    browser = show()
    read = browser.execute_script
    assert read("return ['header', 'nav', 'main', 'footer'].map(t => document.querySelectorAll(t).length)") == [1] * 4
    assert read("return document.documentElement.lang") == "en"
    levels = [int(tag[1]) for tag in read("return [...document.querySelectorAll('h1,h2,h3,h4')].map(h => h.tagName)")]
    assert levels[0] == 1 and levels.count(1) == 1 and levels.count(2) == 6
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert read("return document.querySelectorAll('th:not([scope])').length") == 0
    assert read("return [...document.querySelectorAll('table')].filter(t => !t.querySelector('thead th')).length") == 0
    assert read("return document.querySelectorAll('svg[role=img][aria-label], .mix[aria-label]').length") >= 6
    assert read("return document.querySelectorAll('svg:not([aria-label]):not([aria-hidden])').length") == 0
    names = read("return [...document.querySelectorAll('section,[role=region],nav')].map(e => e.ariaLabel || "
                 "document.getElementById(e.getAttribute('aria-labelledby')).textContent)")  # fmt: skip
    assert all(names) and len(set(names)) == len(names)
    links = read("return [...document.querySelectorAll('a')].map(a => !!document.querySelector(a.hash))")
    assert len(links) >= 10 and all(links)


def test_marks_of_the_roofline_lie_in_the_picture_and_under_the_names(show):
    browser = show()
    script = """const svg = document.querySelector('.roofline'), box = svg.getBoundingClientRect();
      return [...svg.querySelectorAll('.series, text')].map(e => e.getBoundingClientRect()).filter(r =>
        r.left < box.left || r.right > box.right || r.top < box.top || r.bottom > box.bottom).length"""
    assert browser.execute_script(script) == 0
    named = browser.execute_script(
        "return [...document.querySelectorAll('#simple_add .legend li')].map(l => l.innerText)"
    )
    assert named[:2] == ["raw", "raw step"]
