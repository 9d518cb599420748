from dataclasses import replace

import pytest
from report.browser import CHROMIUM, DESKTOP, PHONE, Browser
from report.fixtures import FUNCTIONS, make_check, with_text

from rootscale.report import write

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH (apt-get install chromium)")

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
LINES = """[...document.querySelectorAll('#{0} .scatterlayer path.js-line')]
    .filter((line) => parseFloat(line.style.strokeWidth) > 0).map((line) => line.getAttribute('d'))"""
TITLE = "document.querySelector('#curve-plot .ytitle').textContent"


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write(make_check(), tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture
def opened(browser, report):
    """The report on a desk, by day; at the end nothing may have gone wrong."""
    browser.look(DESKTOP)
    browser.open(report)
    yield browser
    assert browser.problems == []


def lines(browser, plot):
    """The outlines of the curves of a plot that are really drawn."""
    return [line for line in browser.run(LINES.format(plot)) if line and len(line) > 50]


def choose(browser, name):
    browser.act(f"document.querySelector('[name=function][value=\"{FUNCTIONS.index(name)}\"]').click()")


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


def test_the_verdict_and_the_plots_are_there(opened):
    assert opened.run("document.querySelector('.verdict').innerText").startswith("Same: at B")
    assert opened.run("document.querySelectorAll('.card').length") == 4
    assert len(lines(opened, "curve-plot")) == 6  # five arms and the warm start
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


def test_a_test_function_that_was_not_compared_says_so(browser, tmp_path):
    check = make_check()
    arms = []
    for arm in check.others:
        gaps = {name: gap for name, gap in arm.comparison.gaps.items() if name != "Tr Sigma"}
        arms.append(replace(arm, comparison=replace(arm.comparison, gaps=gaps)))
    browser.look(DESKTOP)
    browser.open(write(replace(check, others=tuple(arms)), tmp_path / "report.html"))
    choose(browser, "Tr Sigma")
    assert browser.run("document.getElementById('gap-plot').checkVisibility()") is False
    assert browser.run("document.getElementById('gap-none').checkVisibility()") is True
    choose(browser, "train loss")
    assert browser.run("document.getElementById('gap-plot').checkVisibility()") is True
    assert len(lines(browser, "gap-plot")) == 4
    assert browser.problems == []


def test_the_vertical_axis_is_linear_or_logarithmic(opened):
    before = lines(opened, "curve-plot")
    opened.act("document.querySelector('[name=scale][value=log]').click()")
    assert opened.run("document.getElementById('curve-plot').layout.yaxis.type") == "log"
    assert not set(before) & set(lines(opened, "curve-plot"))
    opened.act("document.querySelector('[name=scale][value=linear]').click()")
    assert lines(opened, "curve-plot") == before


@pytest.mark.parametrize("name", FUNCTIONS[:-1])
def test_a_logarithmic_axis_has_numbers_however_short_it_is(opened, name):
    if name != "train loss":
        choose(opened, name)
    opened.act("document.querySelector('[data-arm=warm]').click()")
    opened.act("document.querySelector('[name=scale][value=log]').click()")
    assert opened.run("document.querySelectorAll('#curve-plot .ytick text').length") >= 2


def test_arms_and_the_warm_start_can_be_switched_off(opened):
    opened.act("document.querySelector('[data-arm=\"3\"]').click()")
    assert opened.run("document.querySelector('[data-arm=\"3\"]').getAttribute('aria-pressed')") == "false"
    assert len(lines(opened, "curve-plot")) == 5
    assert len(lines(opened, "gap-plot")) == 3
    opened.act("document.querySelector('[data-arm=warm]').click()")
    assert len(lines(opened, "curve-plot")) == 4
    assert opened.run("document.getElementById('curve-plot').layout.xaxis.range[0]") > 11_000
    opened.act("document.querySelector('[data-arm=warm]').click()")
    opened.act("document.querySelector('[data-arm=\"3\"]').click()")
    assert len(lines(opened, "curve-plot")) == 6


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
    assert len(set(curves.values())) == 6
    swatches = opened.run(
        "[...document.querySelectorAll('.legend .swatch line')].map((line) => getComputedStyle(line).stroke)"
    )
    assert len(set(swatches)) == 6


def test_plots_follow_the_colour_scheme_also_when_it_changes(browser, report):
    ink = "document.getElementById('curve-plot').layout.font.color"
    base = "document.getElementById('curve-plot').data.find((trace) => trace.name === 'B = 4').line.color"
    ground = "getComputedStyle(document.body).backgroundColor"
    browser.look(DESKTOP, dark=True)
    browser.open(report)
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
    browser.look(PHONE, dark)
    browser.open(report)
    assert browser.run("innerWidth") == 360
    for state in (True, False):
        browser.run(f"document.querySelectorAll('details').forEach((details) => details.open = {str(state).lower()})")
        assert browser.run(OVERFLOW) == 0
    # What is wider than the phone scrolls within its own box, and only there.
    outside = browser.run(
        "[...document.querySelectorAll('main *')].filter((e) => e.checkVisibility() && !e.closest('.scroll')"
        " && e.getBoundingClientRect().right > 360.5).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert outside == []
    assert browser.run("document.querySelector('#numbers > div:not([hidden]) .scroll').scrollWidth") > 360
    assert len(lines(browser, "curve-plot")) == 6
    assert browser.problems == []


@pytest.mark.parametrize("width", [480, 640, 820])
def test_nor_does_anything_between_a_phone_and_a_desk(browser, report, width):
    browser.look((width, 900))
    browser.open(report)
    browser.run("document.querySelectorAll('details').forEach((details) => details.open = true)")
    assert browser.run(OVERFLOW) == 0


def test_plots_show_users_text_literally(browser, tmp_path):
    marked = "<b>x</b> <a href='javascript:1'>y</a> &lt;"  # Plotly would read all of these
    browser.look(DESKTOP)
    browser.open(write(with_text(marked), tmp_path / "report.html"))
    assert browser.run(TITLE).replace("\xa0", " ") == marked
    assert browser.problems == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_text_from_users_does_nothing_but_show(browser, tmp_path, size):
    hostile = '</script><img src=x onerror="hacked=1"><script>hacked=1</script>' + "a" * 80
    browser.look(size)
    browser.open(write(with_text(hostile), tmp_path / "report.html"))
    for choice in (1, 0):
        browser.act(f"document.querySelector('[name=function][value=\"{choice}\"]').click()")
    assert browser.run("window.hacked === undefined && document.querySelectorAll('img').length === 0")
    assert browser.run("document.querySelector('h1').innerText") == hostile
    assert browser.run(TITLE).replace("\xa0", " ") == hostile[:47] + "…"
    assert browser.run(OVERFLOW) == 0
    assert browser.problems == []


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


def test_runs_from_scratch_and_single_seeds_are_drawn(browser, tmp_path):
    browser.look(DESKTOP)
    browser.open(write(make_check(warm=False, seeds=1), tmp_path / "report.html"))
    assert len(lines(browser, "curve-plot")) == 5
    assert "switch" not in browser.run("document.querySelector('#curve-plot .infolayer').textContent")
    assert browser.problems == []
