"""The page in a real browser: it draws, sorts, hides, tells and never runs what a run record says."""

import io
import json
import shutil

import pytest
from rich.console import Console
from run_records import straight, write_run

from adambo.report.build import build

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: the page is not tried")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

HOSTILE = "</script><script>window.hacked = 1; alert(1)</script>"
IMAGE = '<img src="x" onerror="window.hacked = 1">'
NAN = "The upper loss is not finite at step 20."


def paced(tests, seconds):
    """Evaluations that are so many seconds and a thousand times as many oracle calls apart."""
    costs = [{"seconds": seconds * epoch, "oracle_calls": round(1000 * seconds * epoch)} for epoch in range(len(tests))]
    return [one | cost for one, cost in zip(straight(tests), costs, strict=True)]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A comparison with failures, a study of λ, and a run whose every name is hostile."""
    folder = tmp_path_factory.mktemp("report")
    runs = []

    def add(algorithm, seed, tests, **more):
        place = folder / "runs" / str(len(runs))
        runs.append(write_run(place, algorithm, seed, evaluations=tests, **more))

    chance = {"manifest": {"experiment": {"metric": "accuracy", "chance": 0.5}}}
    for seed in (0, 1):
        add("adambo", seed, paced([0.5, 0.7, 0.9 + 0.02 * seed], 0.5), **chance)
        add("soba", seed, paced([0.5, 0.6, 0.7], 0.7), **chance)
        add("vrbo", seed, paced([0.5, 0.5, 0.6], 9.0), **chance)
        add("fsla", seed, paced([0.5, 0.95], 99.0), state="failed", reason="No memory.", **chance)
    add("maml", 0, paced([0.5, 0.7, 0.8], 0.6), **chance)
    add("maml", 1, paced([0.5, 0.75], 0.6), state="diverged", reason=NAN, **chance)
    for eps, final in ((1e-8, 0.9), (1e-4, 0.8), (1e-2, None)):
        more = {"config": {"settings": {"eps": eps}}, "state": "failed" if final is None else "finished"}
        add("adambo", 0, straight([0.5, final or 0.6]), experiment="lambda", **more)
    config = {"note": HOSTILE, IMAGE: IMAGE}
    tricks = {"experiment": IMAGE, "reason": HOSTILE, "state": "failed", "sources": {"note": IMAGE}}
    add(HOSTILE, 0, straight([0.5, 0.6]), config=config, manifest={IMAGE: HOSTILE}, **tricks)
    return build(runs, folder / "report.html", Console(file=io.StringIO()))[0].as_uri()


@pytest.fixture(scope="module")
def browser():
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("chromium and chromedriver are not both installed: the page is not tried")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield browser
    browser.quit()


@pytest.fixture
def page(browser, address):
    resize(browser, 1280)
    browser.get(address)
    return browser


def resize(browser, width, scheme="light"):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    frames = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()));"
    browser.execute_async_script(frames)  # the observer that redraws has had its turn


def section(page, experiment):
    return next(
        s for s in page.find_elements(By.TAG_NAME, "section") if s.find_element(By.TAG_NAME, "h2").text == experiment
    )


def texts(within, css):
    return within.parent.execute_script(
        "return [...arguments[0].querySelectorAll(arguments[1])].map((e) => e.textContent)", within, css
    )


def rows(within):
    return texts(within, "tbody .name")


def button(within, css, text):
    return next(b for b in within.find_elements(By.CSS_SELECTOR, css) if b.text.startswith(text))


def point_of(page, line, share=0.5):
    """A place in the window on a drawn line."""
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", line)
    return page.execute_script(
        "const [line, share] = arguments, p = line.getPointAtLength(share * line.getTotalLength()),"
        " m = line.getScreenCTM(); return [m.a * p.x + m.e, m.d * p.y + m.f].map(Math.round)",
        line, share,
    )  # fmt: skip


def pointer_at(page, place):
    actions = ActionChains(page, duration=0)
    actions.w3c_actions.pointer_action.move_to_location(*place)
    return actions


def test_it_loads_without_a_complaint_and_asks_nothing_of_the_network(browser, address):
    browser.get_log("browser"), browser.get_log("performance")
    resize(browser, 1280)
    browser.get(address)
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert address in asked
    assert [url for url in asked if url != address and not url.startswith("data:")] == []
    for experiment, panels in (("digits", 6), ("lambda", 7), (IMAGE, 6)):
        assert len(section(browser, experiment).find_elements(By.CSS_SELECTOR, "figure > svg")) == panels


def test_the_headings_say_what_is_shown(page):
    digits = section(page, "digits")
    assert digits.find_element(By.CLASS_NAME, "summary").text == "10 runs, seeds 0, 1 · Test CPU, 2 cores"
    captions = texts(digits, "figcaption")
    axes = ("epochs", "seconds of training", "oracle calls")
    assert captions == [f"{split} accuracy against {axis}" for split in ("Train", "Test") for axis in axes]
    assert texts(digits, "figure:first-of-type svg text")[-1] == "chance 0.5"


def test_every_column_sorts_both_ways_and_what_did_not_finish_comes_last(page):
    digits = section(page, "digits")
    by_score, by_cost = ["AdamBO", "MAML", "SOBA", "VRBO"], ["VRBO", "SOBA", "MAML", "AdamBO"]
    assert rows(digits) == [*by_score, "FSLA"]  # by the final test score, before any click
    # FSLA's score was the best and its costs the highest, but no run of it finished: it comes last either way.
    orders = {f"{when} {split} accuracy": by_score for when in ("final", "best") for split in ("train", "test")}
    orders |= {"epochs": by_score, "seconds": by_cost, "oracle calls": by_cost}
    expected = {
        "curve": ["AdamBO", "FSLA", "MAML", "SOBA", "VRBO"],
        "runs": ["AdamBO", "SOBA", "VRBO", "MAML", "FSLA"],  # by how many did not finish
    } | {title: [*order, "FSLA"] for title, order in orders.items()}
    turned = {
        "curve": ["VRBO", "SOBA", "MAML", "FSLA", "AdamBO"],
        "runs": ["FSLA", "MAML", "AdamBO", "SOBA", "VRBO"],
        "epochs": [*by_score, "FSLA"],  # all alike
    }
    assert texts(digits, "thead th") == list(expected)
    for head in digits.find_elements(By.CSS_SELECTOR, "thead th"):
        title, press = head.text, head.find_element(By.TAG_NAME, "button")
        ways = ("ascending", "descending") if title in ("curve", "runs") else ("descending", "ascending")
        press.click()
        assert (rows(digits), head.get_attribute("aria-sort")) == (expected[title], ways[0])
        press.send_keys(Keys.ENTER)  # and with the keyboard
        back = turned.get(title) or [*expected[title][-2::-1], "FSLA"]
        assert (rows(digits), head.get_attribute("aria-sort")) == (back, ways[1])
        assert len(digits.find_elements(By.CSS_SELECTOR, "[aria-sort]")) == 1


def test_a_legend_entry_hides_its_curve_in_all_panels_and_shows_it_again(page):
    digits = section(page, "digits")

    def drawn():
        return len(digits.find_elements(By.CSS_SELECTOR, "g.curve[data-curve='0']"))

    toggle = button(digits, ".toggle", "AdamBO")
    assert (drawn(), toggle.get_attribute("aria-pressed")) == (6, "true")
    toggle.click()
    assert (drawn(), toggle.get_attribute("aria-pressed")) == (0, "false")
    assert len(digits.find_elements(By.CSS_SELECTOR, "g.curve")) == 6 * 4
    toggle.click()
    assert drawn() == 6
    button(digits, ".switches button", "hide all").click()
    assert digits.find_elements(By.CSS_SELECTOR, "g.curve") == []
    button(digits, ".switches button", "show all").click()
    assert len(digits.find_elements(By.CSS_SELECTOR, "g.curve")) == 6 * 5


def test_a_click_on_a_curve_shows_its_configuration_with_sources_and_its_manifest(page):
    line = section(page, "digits").find_elements(By.CSS_SELECTOR, "g.curve[data-curve='0'] .line")[3]
    pointer_at(page, point_of(page, line, 0.8)).click().perform()
    details = page.find_element(By.ID, "details")
    assert details.is_displayed()
    assert details.find_element(By.TAG_NAME, "h2").text == "AdamBO"
    settings = [texts(row, "th, td") for row in details.find_elements(By.CSS_SELECTOR, ".config tbody tr")]
    assert settings == [
        ["algorithm", "adambo", "given"],
        ["seed", "0, 1", "given"],
        ["epochs", "3", ""],
        ["settings.lr", "0.01", "paper"],
        ["settings.eps", "1e-8", ""],
    ]
    manifest = texts(details, ".manifest td")
    assert "ab" * 32 in manifest  # the hash of the data
    assert "3a75ba7" in manifest
    assert "Test CPU" in manifest
    assert texts(details, ".runs tbody td:first-child") == ["0", "1"]


def test_rows_and_legend_entries_open_details_and_escape_returns_to_them(page):
    digits, details = section(page, "digits"), page.find_element(By.ID, "details")
    row = button(digits, "tbody .name button", "MAML")
    row.send_keys(Keys.ENTER)
    assert details.find_element(By.TAG_NAME, "h2").text == "MAML"
    assert NAN in details.text
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not details.is_displayed()
    assert page.switch_to.active_element == row
    digits.find_elements(By.CSS_SELECTOR, ".legend .more")[0].click()
    assert details.find_element(By.TAG_NAME, "h2").text == "AdamBO"
    details.find_element(By.CLASS_NAME, "close").click()
    assert not details.is_displayed()


def test_failures_are_shown_as_failures(page):
    digits = section(page, "digits")
    failed = {entry for entry in texts(digits, ".toggle") if "✕" in entry}
    assert failed == {"MAML✕ 1 diverged", "FSLA✕ 2 failed"}
    ends = texts(digits, "figure:first-of-type g.end title")
    assert sorted(ends) == ["FSLA: seed 0 failed", "FSLA: seed 1 failed", "MAML: seed 1 diverged"]
    assert f"diverged: {NAN} (seed 1 after epoch 1)" in texts(digits, ".reason")
    assert [row for row in rows(digits) if row == "FSLA"]
    partial = texts(digits, ".partial")
    assert len(partial) == 7
    assert all(text.endswith("†") for text in partial)
    assert texts(digits, ".best") == ["0.9600 ± 0.0141", "0.9100 ± 0.0141"] * 2  # FSLA had 0.95 before it failed


def test_the_readout_tells_the_values_at_the_pointer(page):
    line = section(page, "digits").find_elements(By.CSS_SELECTOR, "g.curve[data-curve='0'] .line")[3]
    x, y = point_of(page, line, 1.0)
    pointer_at(page, (x - 1, y)).perform()
    readout = page.find_element(By.ID, "readout")
    assert readout.is_displayed()
    near = readout.find_element(By.CSS_SELECTOR, "tr.near").text.split()
    assert near[0] == "AdamBO"
    assert float(near[1]) == pytest.approx(0.91, abs=0.003)  # one pixel before the end
    assert near[-2:] == ["2", "seeds"]
    assert {text.split()[0] for text in readout.text.splitlines()[1:]} == {"AdamBO", "SOBA", "MAML", "VRBO"}
    assert section(page, "digits").find_element(By.CSS_SELECTOR, "g.curve.on").get_attribute("data-curve") == "0"
    pointer_at(page, (2, 2)).perform()
    assert not readout.is_displayed()


def test_axes_of_costs_can_be_made_logarithmic(page):
    digits = section(page, "digits")
    box = digits.find_element(By.NAME, "seconds")
    assert box.is_selected()  # 18 seconds and 1 second: ten times and more
    panel = digits.find_elements(By.TAG_NAME, "figure")[1]
    assert "1" in texts(panel, "svg text")
    assert "0" not in texts(panel, "svg text")
    box.click()
    assert {"0", "50"} <= set(texts(panel, "svg text"))


def test_a_study_is_drawn_against_its_setting(page):
    study = section(page, "lambda").find_elements(By.TAG_NAME, "figure")[6]
    assert texts(study, "figcaption")[0].startswith("Final accuracy against λ (eps)")
    assert {"10⁻⁸", "10⁻⁴"} <= set(texts(study, "svg text"))
    assert len(study.find_elements(By.CSS_SELECTOR, ".study-test .mark")) == 2
    assert texts(study, ".study-none title") == ["AdamBO, eps=0.01: no run finished"]


def test_what_a_run_says_is_shown_and_never_run(page):
    hostile = section(page, IMAGE)
    assert HOSTILE in texts(hostile, ".toggle")[0]
    assert HOSTILE in texts(hostile, ".reason")[0]
    hostile.find_element(By.CSS_SELECTOR, "tbody .name button").click()
    shown = texts(page.find_element(By.ID, "details"), "h2, th, td")
    assert shown.count(HOSTILE) >= 3  # its name, a setting, and a line of its manifest
    assert shown.count(IMAGE) >= 3  # a key, its value, and a source
    assert page.execute_script("return [window.hacked, document.images.length, document.scripts.length]") == [
        None,
        0,
        2,
    ]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (400, "light")])
def test_it_fits_the_window_and_no_labels_overlap(page, width, scheme):
    resize(page, width, scheme)
    assert page.execute_script("return document.documentElement.scrollWidth") == width
    overlaps = page.execute_script("""
        const found = [];
        for (const svg of document.querySelectorAll("figure > svg")) {
          const texts = [...svg.querySelectorAll("text")];
          const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
          const frame = svg.getBoundingClientRect();
          boxes.forEach(([one, a], i) => {
            if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.bottom > frame.bottom + 1) found.push(one);
            for (const [other, b] of boxes.slice(i + 1)) {
              const beside = a.left >= b.right || b.left >= a.right;
              if (!beside && a.top + 2 < b.bottom && b.top + 2 < a.bottom) found.push([one, other]);
            }
          });
        }
        return found;""")
    assert overlaps == []
    light = page.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (scheme == "light")
