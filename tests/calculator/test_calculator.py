"""The calculator in the browser: what it computes is what Python computes, and everybody can use it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from calculator.requests import answer, make_requests
from calculator_tables import calculator_tables
from report.browser import CHROMIUM, DESKTOP, Browser

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "calculator" / "index.html"
PLANS = 1000

needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium on the PATH (apt-get install chromium)"
)
TYPE = """(() => {{ const field = document.getElementById({id}); field.focus(); field.value = {value};
    field.dispatchEvent(new Event('input', {{ bubbles: true }})); }})()"""


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture
def opened(browser):
    """The page as it is when it is opened; at the end nothing may have gone wrong."""
    show(browser)
    yield browser
    assert browser.problems == []


def show(browser, size=DESKTOP, dark=False, link=""):
    browser.look(size, dark)
    browser.open(PAGE)
    browser.run("localStorage.clear(); history.replaceState(null, '', location.pathname); true")
    browser.act(f"location.hash = {json.dumps(link)}; load()")


def put(browser, **values):
    for name, value in values.items():
        browser.act(TYPE.format(id=json.dumps(name.replace("__", ".")), value=json.dumps(value)))


def text(browser, selector):
    return browser.run(f"document.querySelector({json.dumps(selector)}).innerText")


def differences(here, there, path=""):
    """What differs between two answers: numbers beyond rounding, and anything else."""
    if isinstance(here, dict):
        for key, value in here.items():
            yield from differences(value, there.get(key, "nothing"), f"{path}.{key}")
    elif isinstance(here, list | tuple):
        if len(here) != len(there):
            yield f"{path}: {len(here)} here, {len(there)} there"
        for i, (one, other) in enumerate(zip(here, there, strict=False)):
            yield from differences(one, other, f"{path}.{i}")
    elif type(here) in (int, float) and type(there) in (int, float):
        if abs(here - there) > 1e-13 * abs(here):
            yield f"{path}: {here} here, {there} there"
    elif here != there:
        yield f"{path}: {here!r} here, {there!r} there"


def test_the_calculators_tables_are_those_of_the_package(tmp_path):
    # In a process of its own: other tests register optimizers of their own.
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(
        [sys.executable, str(ROOT / "website" / "calculator_tables.py"), str(tmp_path / "table.js")],
        env=env,
        check=True,
    )
    written = (tmp_path / "table.js").read_text(encoding="utf-8")
    assert written == (PAGE.parent / "table.js").read_text(encoding="utf-8"), "make calculator writes it anew"


def test_the_page_needs_nothing_from_elsewhere():
    for file in PAGE.parent.iterdir():
        found = re.findall(r"(?:src|href)=\"([^\"]+)\"|url\(([^)]+)\)|\bfetch\(|\bimport ", file.read_text("utf-8"))
        places = {one for pair in found for one in pair if one}
        assert all(place.startswith(("#", "data:")) or (PAGE.parent / place).is_file() for place in places)


@needs_browser
def test_random_plans_are_converted_as_in_python(opened):
    optimizers = json.loads(json.dumps(calculator_tables()["optimizers"]))
    shipped = set(opened.run("Object.keys(ROOTSCALE.optimizers)"))
    requests = make_requests({name: row for name, row in optimizers.items() if name in shipped}, PLANS)
    there = json.loads(opened.run(f"JSON.stringify({json.dumps(requests)}.map(answerTo))"))
    here = [answer(request) for request in requests]
    wrong = [
        (request, *found)
        for request, one, other in zip(requests, here, there, strict=True)
        if (found := [*differences(one, other)])
    ]
    assert wrong == []
    # The plans are no easy ones: many have warnings, some cannot be converted, all kinds of rows are there.
    assert sum("error" in one for one in here) > PLANS / 10
    good = [one for one in here if "error" not in one]
    assert len(good) > PLANS / 2
    assert sum(bool(one["warnings"]) for one in good) > PLANS / 10
    rows = [row for one in good for row in one["changes"]]
    assert {row["status"] for row in rows} == {"theorem", "derived", "heuristic", "measured", "kept"}
    assert {one["to"]["optimizer"]["name"] for one in good} == shipped
    assert sum(one["code"].startswith("error") for one in good) > 0


@needs_browser
def test_every_kind_of_form_is_known_to_the_page(opened):
    kinds = set(opened.run("ROOTSCALE.rows.map((row) => row.form.kind)"))
    # What follows the weight of an average is state, which no plan has.
    assert kinds - set(opened.run("Object.keys(FORMS)")) == {"moment", "summed"}


@needs_browser
def test_errors_are_said_at_the_field_that_has_them(opened):
    requests = make_requests(json.loads(json.dumps(calculator_tables()["optimizers"])), PLANS, seed=1)
    there = opened.run(f"{json.dumps(requests)}.map(answerTo).filter((one) => one.error).map((one) => one.field)")
    assert len(there) > PLANS / 10
    assert all(there)
    put(opened, optimizer__beta1="1.5")
    field = "document.getElementById('optimizer.beta1')"
    assert opened.run(f"{field}.getAttribute('aria-invalid')") == "true"
    described = opened.run(f"document.getElementById({field}.getAttribute('aria-describedby')).innerText")
    assert described == "Must be in [0, 1), got 1.5"
    assert text(opened, "#heading") == "A value cannot be used"
    assert opened.run("document.getElementById('found').hidden")
    put(opened, optimizer__beta1="many")
    assert "Must be a number such as 0.001 or 1e-3, got 'many'" in text(opened, "#summary")
    put(opened, optimizer__beta1="0.9", averaging="paper", to="25600")
    assert "kappa=100 gives beta1=-9; need kappa < 10, or floors" in text(opened, "#summary")
    put(opened, averaging="")
    assert text(opened, "#heading") == "Batch size 256 → 25,600, kappa = 100"


@needs_browser
def test_the_page_shows_the_run_of_the_readme(opened):
    shown = opened.run("[...document.querySelectorAll('#changes li')].map((row) => row.innerText.split(/\\s*\\n\\s*/))")
    rows = {name: rest for name, *rest in shown}
    assert rows["lr"][:4] == ["0.0003", "→", "0.0006", "derived"]
    assert rows["weight_decay"][:4] == ["0.1", "→", "0.2", "derived"]
    assert rows["steps"][:3] == ["100,000", "→", "25,000"]
    assert "torch.optim.AdamW(model.parameters(), lr=0.0006, betas=(0.9, 0.9)" in text(opened, "#code")
    assert text(opened, "#summary") == "25,600,000 samples in both, rule sqrt; 7 of 8 values change"


@needs_browser
def test_a_link_carries_the_run(opened):
    put(opened, optimizer="muon", optimizer__eta="0.02", to="32x8x8", rule="normalized-half", clip="1")
    link, result = opened.run("location.hash"), text(opened, "#result")
    assert "kappa = 8" in result
    assert "0.0951" in result
    show(opened, link=link)
    assert opened.run("location.hash") == link
    assert text(opened, "#result") == result
    assert opened.run("document.getElementById('more').open && document.getElementById('how').open")
    opened.act("document.getElementById('reset').click()")
    assert opened.run("location.hash") == ""
    assert "1,024, kappa = 4" in text(opened, "#heading")


@needs_browser
@pytest.mark.parametrize("word", ["newest", "constructor", "__proto__"])
def test_links_with_unknown_words_show_what_can_be_shown(opened, word):
    words = "&".join(f"{name}={word}" for name in ("optimizer", "rule", "averaging", "schedule.name"))
    show(opened, link=f"#batch_size=8&to=16&optimizer.eta=1&{words}")
    assert text(opened, "#heading") == "Batch size 8 → 16, kappa = 2"


@needs_browser
def test_another_optimizer_keeps_only_the_values_that_mean_the_same(opened):
    put(opened, optimizer="muon")
    values = opened.run("[...document.querySelectorAll('#values input')].map((field) => [field.id, field.value])")
    assert dict(values) == {
        "optimizer.eta": "3e-4", "optimizer.mu": "", "optimizer.weight_decay": "0.1", "optimizer.eps": "",
        "optimizer.beta2": "",
    }  # fmt: skip


@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (320, False)])
def test_nothing_sticks_out_on_a_phone(browser, width, dark):
    show(
        browser,
        (width, 844),
        dark,
        "#optimizer=soap&optimizer.eta=1e-3&batch_size=8x4x2&to=1000&steps=777&clip=1&ema=0.9",
    )
    assert browser.run("document.documentElement.scrollWidth") == width
    outside = """[...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && !e.closest('pre')
        && e.getBoundingClientRect().right > innerWidth + 0.5).map((e) => e.outerHTML.slice(0, 80))"""
    assert browser.run(outside) == []
    small = """[...document.querySelectorAll('button, input:not([type]), select, summary')]
        .filter((e) => e.checkVisibility() && e.getBoundingClientRect().height < 24).map((e) => e.outerHTML)"""
    assert browser.run(small) == []
    assert browser.problems == []


def contrast(one, other):
    """The contrast of two colours "rgb(r, g, b)" as the WCAG has it."""

    def light(colour):
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_all_text_can_be_read_in_both_themes(browser, dark):
    show(browser, dark=dark)
    put(browser, rule="none")
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    pairs = browser.run("""[...document.querySelectorAll('body *')].filter((e) => e.checkVisibility()
        && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())).map((e) => {
          let ground = e; const paint = (x) => getComputedStyle(x).backgroundColor;
          while (ground && paint(ground) === 'rgba(0, 0, 0, 0)') ground = ground.parentElement;
          return [e.outerHTML.slice(0, 60), getComputedStyle(e).color, paint(ground)]; })""")
    assert len(pairs) > 60
    assert [pair for pair in pairs if contrast(*pair[1:]) < 4.5] == []


@needs_browser
def test_the_button_chooses_the_theme_and_keeps_it(opened):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = opened.run(ground)
    for _ in range(2):
        opened.run("document.getElementById('theme').click()")
    assert text(opened, "#theme") == "Theme: dark"
    assert opened.run(ground) != light
    opened.open(PAGE)
    assert text(opened, "#theme") == "Theme: dark"
    opened.run("document.getElementById('theme').click()")
    assert opened.run(ground) == light


@needs_browser
def test_the_keyboard_reaches_everything_in_order(opened):
    opened.run("document.body.focus()")
    reached, outlined = [], []
    for _ in range(60):
        for kind in ("keyDown", "keyUp"):
            opened.send("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.append(opened.run("document.activeElement.id || document.activeElement.tagName"))
        outlined.append(opened.run("getComputedStyle(document.activeElement).outlineStyle"))
        if reached[-1] == "BODY":
            break
    order = ["skip", "A", "A", "theme", "batch_size", "to", "sequence_length", "optimizer", "optimizer.eta"]
    assert reached[: len(order)] == order
    there = [
        reached.index(name) for name in ("steps", "schedule.name", "ema", "copy-link", "formulas", "copy-code", "PRE")
    ]
    assert there == sorted(there)
    assert set(outlined[: reached.index("PRE")]) <= {"solid", "auto"}
    labels = "[...document.querySelectorAll('input, select')].every((field) => field.labels.length === 1)"
    assert opened.run(labels)
    assert opened.run("document.querySelector('[aria-live=polite] #heading') !== null")


@needs_browser
def test_code_and_link_are_copied(opened):
    session, opened.session = opened.session, None  # permissions are the browser's, not the page's
    opened.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    opened.session = session
    opened.send("Page.bringToFront")
    copied = []
    for name in ("code", "link"):
        opened.run(f"document.getElementById('said').hidden = true; document.getElementById('copy-{name}').click()")
        opened.wait("!document.getElementById('said').hidden")
        copied.append(opened.run("navigator.clipboard.readText()"))
    code, link = copied
    assert code == text(opened, "#code").replace("\u00a0", " ")
    assert link.endswith("&ema=0.9999")
    assert text(opened, "#said") == "The link is copied"
