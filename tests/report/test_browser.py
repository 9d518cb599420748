import base64
import re
from dataclasses import replace

import pytest
from report.browser import CHROMIUM, DESKTOP, PHONE, Browser
from report.fixtures import FUNCTIONS, make_check, renamed, unjudged, with_text

from rootscale.report import write_page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH (apt-get install chromium)")

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
#: What sticks out of a phone's window and does not scroll in a box of its own.
OUTSIDE = """[...document.querySelectorAll('main *')].filter((e) => e.checkVisibility() && !e.closest('.scroll')
    && e.getBoundingClientRect().right > 360.5).map((e) => e.outerHTML.slice(0, 80))"""
LINES = """[...document.querySelectorAll('#{0} .scatterlayer path.js-line')]
    .filter((line) => parseFloat(line.style.strokeWidth) > 0).map((line) => line.getAttribute('d'))"""
TITLE = "document.querySelector('#curve-plot .ytitle').textContent"


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_page(make_check(), tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture
def opened(browser, report):
    """The report on a desk, by day; at the end nothing may have gone wrong."""
    browser.show(report)
    yield browser
    assert browser.problems == []


def lines(browser, plot):
    """The outlines of the curves of a plot that are really drawn."""
    return [line for line in browser.run(LINES.format(plot)) if line and len(line) > 50]


def choose(browser, name):
    browser.act(f"document.querySelector('[name=function][value=\"{FUNCTIONS.index(name)}\"]').click()")


def test_the_verdict_and_the_plots_are_there(opened):
    assert opened.run("document.querySelector('.verdict').innerText").startswith("Same as B")
    assert opened.run("document.querySelectorAll('.card').length") == 4
    assert len(lines(opened, "curve-plot")) == 5
    assert len(lines(opened, "gap-plot")) == 4
    assert len(lines(opened, "noise-plot")) == 2
    assert "switch" in opened.run("document.querySelector('#curve-plot .infolayer').textContent")
    assert "tolerance ±5 %" in opened.run("document.querySelector('#gap-plot .infolayer').textContent")
    for size in (4, 16, 64):
        assert f"B = {size}" in opened.run("document.querySelector('#noise-plot .infolayer').textContent")


def test_the_tolerance_strip_is_drawn_to_scale(opened):
    shapes = opened.run("document.getElementById('gap-plot').layout.shapes.map((s) => [s.type, s.y0, s.y1])")
    assert ["rect", -0.05, 0.05] in shapes
    low, high = opened.run("document.getElementById('gap-plot').layout.yaxis.range")
    assert low < -0.05 < 0.05 < high


def test_choosing_a_test_function_changes_plots_and_table(opened):
    before = lines(opened, "curve-plot"), lines(opened, "gap-plot")
    assert opened.run(TITLE) == "train loss"
    choose(opened, "test accuracy")
    after = lines(opened, "curve-plot"), lines(opened, "gap-plot")
    assert opened.run(TITLE) == "test accuracy"
    for old, new in zip(before, after, strict=True):
        assert len(old) == len(new)
        assert not set(old) & set(new)
    shown = opened.run("[...document.querySelectorAll('#numbers > div:not([hidden]) caption')].map((c) => c.innerText)")
    assert shown == ["test accuracy, in numbers"]
    assert "test accuracy" in opened.run("document.getElementById('gap-plot').getAttribute('aria-label')")


def test_the_vertical_axis_is_linear_or_logarithmic(opened):
    before = lines(opened, "curve-plot")
    opened.act("document.querySelector('[name=scale][value=log]').click()")
    assert opened.run("document.getElementById('curve-plot').layout.yaxis.type") == "log"
    assert not set(before) & set(lines(opened, "curve-plot"))
    opened.act("document.querySelector('[name=scale][value=linear]').click()")
    assert lines(opened, "curve-plot") == before


def test_a_logarithmic_axis_has_numbers_however_short_it_is(opened):
    opened.act("document.querySelector('[name=scale][value=log]').click()")
    for name in (*FUNCTIONS[1:-1], FUNCTIONS[0]):
        choose(opened, name)
        assert opened.run("document.querySelectorAll('#curve-plot .ytick text').length") >= 2, name


def test_arms_can_be_switched_off(opened):
    opened.act("document.querySelector('[data-arm=\"3\"]').click()")
    assert opened.run("document.querySelector('[data-arm=\"3\"]').getAttribute('aria-pressed')") == "false"
    assert len(lines(opened, "curve-plot")) == 4
    assert len(lines(opened, "gap-plot")) == 3
    opened.act("document.querySelector('[data-arm=\"3\"]').click()")
    assert len(lines(opened, "curve-plot")) == 5


def test_what_follows_the_switch_has_the_plots_to_itself_until_the_rest_is_asked_for(opened):
    window = "['curve-plot', 'gap-plot'].map((id) => document.getElementById(id).layout.xaxis.range[0])"
    top = "document.getElementById('curve-plot')._fullLayout.yaxis.range[1]"
    chip = "document.querySelector('[data-arm=warm]')"
    assert opened.run(f"{chip}.getAttribute('aria-pressed')") == "false"
    assert all(11_000 < start < 12_000 for start in opened.run(window))
    after = opened.run(top)
    assert 0.5 < after < 0.7  # the loss at the switch is 0.56
    assert opened.run("document.getElementById('noise-plot').layout.xaxis.range[0]") < 0  # which shows how it grew
    opened.act(f"{chip}.click()")
    assert opened.run(f"{chip}.getAttribute('aria-pressed')") == "true"
    assert len(lines(opened, "curve-plot")) == 6
    assert all(start < 0 for start in opened.run(window))
    assert opened.run(top) > 2.2
    opened.act(f"{chip}.click()")
    assert opened.run(top) == after


def test_the_plots_zoom_together(opened):
    opened.run("Plotly.relayout('curve-plot', {'xaxis.range[0]': 20000, 'xaxis.range[1]': 30000}).then(() => true)")
    for plot in ("gap-plot", "noise-plot"):
        opened.wait(f"String(document.getElementById('{plot}').layout.xaxis.range) === '20000,30000'")


def test_an_arm_has_one_colour_and_one_dash_everywhere(opened):
    script = """['curve-plot', 'gap-plot'].map((id) => Object.fromEntries(document.getElementById(id).data
        .filter((trace) => trace.name).map((trace) => [trace.name, trace.line.color + trace.line.dash])))"""
    curves, gaps = opened.run(script)
    assert set(gaps) == {"B = 16", "B = 64", "B = 64, linear", "SVAG ell = 2"}
    assert {name: curves[name] for name in gaps} == gaps
    assert len(set(curves.values())) == 5
    swatches = opened.run(
        "[...document.querySelectorAll('.legend .swatch line')].map((line) => getComputedStyle(line).stroke)"
    )
    assert len(set(swatches)) == 6


def test_plots_follow_the_colour_scheme_also_when_it_changes(browser, report):
    ink = "document.getElementById('curve-plot').layout.font.color"
    base = "document.getElementById('curve-plot').data.find((trace) => trace.name === 'B = 4').line.color"
    ground = "getComputedStyle(document.body).backgroundColor"
    browser.show(report, dark=True)
    night = [browser.run(script) for script in (ink, base, ground)]
    drawn = browser.run("Number(document.body.dataset.drawn)")
    browser.look(DESKTOP, dark=False)
    browser.wait(f"Number(document.body.dataset.drawn) > {drawn}")
    day = [browser.run(script) for script in (ink, base, ground)]
    assert night == ["#e9eaec", "#f2f3f5", "rgb(18, 20, 24)"]
    assert day == ["#1d2126", "#1d2126", "rgb(246, 246, 243)"]
    assert browser.problems == []


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_needs_no_sideways_scrolling(browser, report, dark):
    browser.show(report, PHONE, dark)
    assert browser.run("innerWidth") == 360
    for state in (True, False):
        browser.run(f"document.querySelectorAll('details').forEach((details) => details.open = {str(state).lower()})")
        assert browser.run(OVERFLOW) == 0
        tables = "[...document.querySelectorAll('div.scroll')]"  # stacked, so that none is cut
        assert browser.run(f"{tables}.filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.ariaLabel)") == []
    assert browser.run(OUTSIDE) == []
    assert len(lines(browser, "curve-plot")) == 5
    assert browser.problems == []


def test_nor_does_anything_between_a_phone_and_a_desk(browser, report):
    browser.show(report)
    browser.run("document.querySelectorAll('details').forEach((details) => details.open = true)")
    for width in (480, 640, 820):
        browser.look((width, 900))
        browser.run("new Promise((done) => setTimeout(done, 300))")  # plots follow their boxes after a while
        assert browser.run(OVERFLOW) == 0


def test_paper_has_the_plans_open_and_plots_as_wide_as_itself(browser, report):
    browser.show(report, dark=True)
    opened = "document.querySelectorAll('.plans details[open]').length"
    before = browser.run(opened)
    # The plots must be ready when the event is over, as the browser prints then.
    browser.act("dispatchEvent(new Event('beforeprint'))")
    assert browser.run(opened) == 4
    sizes = browser.run(
        "[...document.querySelectorAll('.plot')].map((p) => [p.clientWidth, p.querySelector('.main-svg').clientWidth])"
    )
    assert len(sizes) == 3
    assert all(660 < box == drawn < 700 for box, drawn in sizes)
    assert browser.run("document.getElementById('curve-plot').layout.font.color") == "#1d2126"  # ink, not chalk
    pdf = base64.b64decode(browser.send("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert pdf.startswith(b"%PDF-")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 8
    browser.act("dispatchEvent(new Event('afterprint'))")
    assert browser.run(opened) == before
    assert browser.run("document.getElementById('curve-plot').clientWidth") > 1000
    browser.wait("document.querySelector('#curve-plot .main-svg').clientWidth > 1000")
    assert browser.problems == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_a_term_shows_its_meaning_within_the_window(browser, report, size):
    browser.show(report, size)
    count = browser.run("document.querySelectorAll('.term').length")
    assert count >= 8
    for number in range(count):
        browser.run(f"document.querySelectorAll('.term')[{number}].focus()")
        if browser.run("document.activeElement.className") != "term":
            continue  # in a part that is closed
        left, right, text = browser.run(
            "(() => { const tip = document.getElementById('tip'), box = tip.getBoundingClientRect();"
            " return [box.left, box.right, tip.textContent]; })()"
        )
        assert 0 <= left < right <= size[0]
        assert len(text) > 10
    browser.run("document.activeElement.blur()")
    assert browser.run("document.getElementById('tip').hidden")
    assert browser.run(OVERFLOW) == 0


def test_no_button_sends_the_data_away(opened):
    titles = opened.run("[...document.querySelectorAll('#curve-plot .modebar-btn')].map((b) => b.dataset.title)")
    assert len(titles) == 4
    assert not [title for title in titles if "share" in title.lower() or "cloud" in title.lower()]


def test_a_plot_can_be_had_as_svg(opened):
    url = opened.run("Plotly.toImage('gap-plot', {format: 'svg', width: 700, height: 400})")
    assert url.startswith("data:image/svg+xml")
    assert url.count("js-line") >= 4 or url.count("scatterlayer") == 1


def test_the_keyboard_reaches_and_works_everything(opened):
    controls = opened.run(
        "[...document.querySelectorAll('button, input, summary, .scroll')].filter((e) => e.tabIndex < 0).length"
    )
    assert controls == 0
    opened.run("document.querySelector('[name=function]').focus()")
    drawn = opened.run("Number(document.body.dataset.drawn)")
    key = {"key": "ArrowRight", "code": "ArrowRight", "windowsVirtualKeyCode": 39}
    opened.send("Input.dispatchKeyEvent", type="rawKeyDown", **key)
    opened.send("Input.dispatchKeyEvent", type="keyUp", **key)
    opened.wait(f"Number(document.body.dataset.drawn) > {drawn}")
    assert opened.run(TITLE) == "test loss"


def test_plots_have_words_for_those_who_cannot_see_them(opened):
    labels = opened.run("[...document.querySelectorAll('.plot')].map((p) => [p.getAttribute('role'), p.ariaLabel])")
    assert [role for role, _ in labels] == ["img"] * 3
    assert all(len(label) > 40 for _, label in labels)
    unnamed = "[...document.querySelectorAll('svg.mark, svg.swatch')].filter((s) => !s.ariaHidden).length"
    assert opened.run(unnamed) == 0


# -- Pages of their own, each of which takes a second to load.


def test_the_browser_of_these_tests_notices_errors(browser, tmp_path):
    page = tmp_path / "broken.html"
    page.write_text(
        "<body data-drawn=1><script>console.error('one'); fetch('http://localhost:9/three').catch(() => 0);"
        "throw new Error('two')</script>"
    )
    browser.look(DESKTOP)
    browser.open(page)
    browser.run("new Promise((done) => setTimeout(done, 100))")
    text = " ".join(browser.problems)
    assert all(part in text for part in ("one", "Error: two", "asked the network for http://localhost:9/three"))


def test_text_from_users_does_nothing_but_show(browser, tmp_path):
    # Plotly would read the first three of these.
    hostile = (
        '<b>x</b> <a href="#">y</a> &lt; </script><img src=x onerror="hacked=1"><script>hacked=1</script>' + "a" * 80
    )
    report = write_page(with_text(hostile), tmp_path / "report.html")
    for size in (DESKTOP, PHONE):
        browser.show(report, size)
        for choice in (1, 0):
            browser.act(f"document.querySelector('[name=function][value=\"{choice}\"]').click()")
        assert browser.run("window.hacked === undefined && document.querySelectorAll('img').length === 0")
        assert browser.run("document.querySelector('h1').innerText") == hostile
        assert browser.run(TITLE).replace("\xa0", " ") == hostile[:47] + "…"
        assert browser.run(OVERFLOW) == 0
        assert browser.problems == []


def test_runs_from_scratch_and_single_seeds_are_drawn(browser, tmp_path):
    browser.look(DESKTOP)
    browser.open(write_page(make_check(warm=False, seeds=1), tmp_path / "report.html"))
    assert len(lines(browser, "curve-plot")) == 5
    assert "switch" not in browser.run("document.querySelector('#curve-plot .infolayer').textContent")
    assert browser.problems == []


def test_functions_may_be_called_like_built_ins_and_what_is_missing_is_not_found_among_these(browser, tmp_path):
    names = {"train loss": "__proto__", "test accuracy": "constructor", "Tr Sigma": "toString", "test loss": "length"}
    check = renamed(make_check(), names)  # the warm start lacks them all
    arms = []
    for i, arm in enumerate(check.others):
        missing = ("toString", "constructor")[: 2 if i == 0 else 1]  # one was compared in no arm, one not in the first
        gaps = {name: gap for name, gap in arm.comparison.gaps.items() if name not in missing}
        arms.append(replace(arm, comparison=replace(arm.comparison, gaps=gaps)))
    browser.look(DESKTOP)
    browser.open(write_page(replace(check, others=tuple(arms)), tmp_path / "report.html"))
    titles = browser.run("[...document.querySelectorAll('.choice [name=function] + span')].map((e) => e.innerText)")
    assert set(names.values()) < set(titles)
    browser.act("document.querySelector('[data-arm=warm]').click()")
    for i in (*range(1, len(titles)), 0):
        title = titles[i]
        browser.act(f"document.querySelector('[name=function][value=\"{i}\"]').click()")
        assert browser.run(TITLE) == title
        assert len(lines(browser, "curve-plot")) == (5 if title in names.values() else 6), title
        assert browser.run("document.getElementById('gap-plot').checkVisibility()") is (title != "toString")
        assert browser.run("document.getElementById('gap-none').checkVisibility()") is (title == "toString")
        if title != "toString":
            assert len(lines(browser, "gap-plot")) == (3 if title == "constructor" else 4), title
    assert browser.problems == []


def test_runs_that_were_not_judged_are_drawn_without_bands_and_long_labels_fit(browser, tmp_path):
    labels = (
        "256 → 4,096, everything converted", "hyperparameters, not the state", "nothing but the batch size",
        "ramp 256 → 1,024 → 4,096 → 16,384",
    )  # fmt: skip
    check = unjudged(make_check())
    arms = tuple(replace(arm, label=label) for arm, label in zip(check.others, labels, strict=True))
    report = write_page(replace(check, others=arms), tmp_path / "report.html")
    browser.look(PHONE)
    browser.open(report)
    assert browser.run(OVERFLOW) == 0
    assert browser.run(OUTSIDE) == []
    browser.show(report)
    assert browser.run("document.querySelector('.verdict').innerText").startswith(
        "Not judged: a verdict needs at least"
    )
    assert len(lines(browser, "gap-plot")) == 4
    assert browser.run("document.getElementById('gap-plot').data.filter((trace) => trace.fill).length") == 0
    assert browser.run("document.getElementById('gap-plot').layout.shapes.filter((s) => s.type === 'rect').length") == 0
    assert browser.problems == []
