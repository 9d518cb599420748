import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources

import numpy as np
import pytest
from report.fixtures import FUNCTIONS, make_check, unjudged, with_text

from rootscale.compare.result import settles
from rootscale.lab import Table, compare
from rootscale.noise import noise_cause
from rootscale.report import render_page, write_page
from rootscale.report.styles import STRIP, STYLES, WARM, style_of
from rootscale.report.words import sentences
from rootscale.verdict import definition

HOSTILE = """</script><img src=x onerror="hacked=1"><!-- '&amp;' $task ${data} </style>\u2028"""
VOID = {"meta", "link", "input", "img", "br"}


class Parsed(HTMLParser):
    """Tags with their attributes, the text that is seen, and the text of each script."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.scripts, self.seen, self.open = [], [], [], []
        self.feed(text)
        self.close()
        self.text = " ".join("".join(self.seen).replace("\xa0", " ").split())

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += text
        elif "style" not in self.open:
            self.seen.append(text)

    @property
    def data(self):
        def refuse(constant):
            raise AssertionError(f"{constant} is not JSON")

        return json.loads(self.scripts[0], parse_constant=refuse)


@pytest.fixture(scope="module")
def plain():
    return Parsed(render_page(make_check()))


def headings(parsed):
    return [tag for tag, _ in parsed.tags if re.fullmatch(r"h\d", tag)]


def test_the_verdict_comes_first_in_plain_sentences(plain):
    start = plain.text[plain.text.index("digits: MLP 64-32-10", 20) :]
    assert start.startswith(
        "digits: MLP 64-32-10 Same as B = 4, within 5 % of its range (train loss and test loss):B = 16"
        "Different from B = 4, by more than 5 % of its range (train loss and test loss):"
        "B = 64, linear, by up to 20.7 % (train loss)"
        "Undecided whether the same as B = 4 within 5 % of its range (train loss and test loss):"
        "B = 64, about 41 seeds would decide (there are 16) base: B = 4"
    )


def texts(check):
    return [str(sentence).replace("\xa0", " ") for sentence in sentences(check)]


def test_one_arm_gives_one_sentence():
    check = make_check()
    assert texts(replace(check, others=check.others[:1])) == [
        "Same as B = 4, within 5 % of its range (train loss and test loss): B = 16"
    ]


def test_the_verdict_is_that_of_the_functions_that_decide_and_the_others_are_followed(plain):
    arm = make_check().others[0]
    assert arm.comparison.gaps["gradient norm"].verdict == "different"
    card = plain.text[plain.text.index("B = 16Same") :]
    card = card[: card.index("B = 64Undecided")]
    far = arm.comparison.decisive[0].largest.gap
    assert card.startswith(f"B = 16Same{100 * far:.1f} % (+0.00434) largest gap: train loss, at ")
    assert "16 runs against 16, wide bands of ± 3.2 standard errors" in card
    marked = re.findall(
        r"(train loss|test loss|test accuracy|gradient norm|Tr Sigma|parameter norm)(decides|followed)", card
    )
    assert [role for _, role in marked] == ["decides"] * 2 + ["followed"] * 4
    assert "gradient normfollowed15" in card
    assert "decided by train loss and test loss" in plain.text


def test_a_verdict_that_rests_on_another_function_shows_that_first():
    check = make_check()
    arm = check.others[0]
    on_norm = replace(arm.comparison, deciding=("gradient norm",))
    check = replace(check, others=(replace(arm, comparison=on_norm),))
    parsed = Parsed(render_page(check))
    assert parsed.data["functions"][0] == "gradient norm"
    assert "Different from B = 4, by more than 5 % of its range (gradient norm):B = 16, by up to 15" in parsed.text


def test_what_would_decide_is_counted_for_the_functions_that_decide():
    check = make_check()
    arm = check.others[0]
    gaps = dict(arm.comparison.gaps)
    gaps["train loss"] = replace(gaps["train loss"], verdict="undecided", seeds_needed=24)
    gaps["gradient norm"] = replace(gaps["gradient norm"], verdict="undecided", seeds_needed=9_000)
    check = replace(check, others=(replace(arm, comparison=replace(arm.comparison, gaps=gaps)),))
    assert texts(check)[0].endswith("B = 16: about 24 seeds would decide (there are 16)")
    assert "9,000 seeds would decide" in Parsed(render_page(check)).text  # in the list of all


def test_a_run_that_comes_back_says_from_when_on():
    check = make_check()
    arm = check.others[0]
    gap = arm.comparison.gaps["train loss"]
    moved = np.where(np.arange(41) < 11, 0.2, 0.0)
    gaps = {
        **arm.comparison.gaps,
        "train loss": replace(
            gap, gap=gap.gap + moved, low=gap.low + moved, high=gap.high + moved, verdict="different"
        ),
    }
    back = replace(arm, comparison=replace(arm.comparison, gaps=gaps))
    parsed = Parsed(render_page(replace(check, others=(back,))))
    assert "Later: from 23,000 samples on the gap stays within the tolerance" in parsed.text
    assert settles(arm) == ""  # it was never away
    assert settles(check.others[2]) == ""  # it does not come back


def test_too_few_seeds_for_a_verdict_are_no_error():
    parsed = Parsed(render_page(unjudged(make_check())))
    assert "Not judged: a verdict needs at least 2 seeds; there is 1:B = 16B = 64" in parsed.text
    findings = parsed.text.partition("All terms of this page")[0]
    for word in ("Same", "Different", "Undecided", "tolerance", "decided by"):
        assert word not in findings.replace("±", "")
    card = parsed.text[parsed.text.index("SVAG ell = 2Not judged") :]
    assert card.startswith(
        "SVAG ell = 2Not judgedA verdict needs at least 2 seeds; there is 1.train loss at the end 0."
    )
    assert parsed.data["tolerances"] == [None] * 6
    base, arm = parsed.data["arms"][0], parsed.data["arms"][3]
    assert base["gaps"] == [None] * 6
    assert arm["gaps"][0]["low"] is None
    reference = np.array(base["curves"][0]["mean"])
    expected = (np.array(arm["curves"][0]["mean"]) - reference) / np.ptp(reference)
    np.testing.assert_allclose(arm["gaps"][0]["gap"], expected, atol=1e-4)
    assert 0.15 < max(expected) < 0.3


def test_some_arms_may_be_judged_and_others_not():
    check = make_check()
    few = unjudged(check).others[0]
    parsed = Parsed(render_page(replace(check, others=(few, check.others[2]))))
    assert "Not judged: a verdict needs at least 2 seeds; there is 1:B = 16" in parsed.text
    assert "not judged is that of their means, without a band" in parsed.text
    assert parsed.data["tolerances"][0] == 0.05


def test_a_ramp_shows_all_its_batch_sizes_and_switches():
    check = make_check()
    variant = {"kappa": "4", "ramp": [[26_000, "16"]]}

    def ramped(arm):
        meta = {**arm.trajectory.meta, "variant": variant, "base_plan": {}, "switch_at": 12_000}
        return replace(arm, trajectory=replace(arm.trajectory, meta=meta))

    ramps = tuple(map(ramped, check.others[1:3]))
    parsed = Parsed(render_page(replace(check, others=(*ramps, check.others[3]))))
    assert parsed.data["switches"] == [{"at": 12_000, "text": "B → 16"}, {"at": 26_000, "text": "B → 64"}]
    assert [entry["size"] for entry in parsed.data["sizes"]] == [4, 16, 64]
    assert "switch after 12,000 and 26,000 samples" in parsed.text
    assert "κ = 16; B = 16 from 12,000 samples on and B = 64 from 26,000 samples on" in parsed.text
    # Where runs go different ways, only what is common to them is marked.
    parsed = Parsed(render_page(replace(check, others=(ramps[0], check.others[0]))))
    assert parsed.data["switches"] == [{"at": 12_000, "text": "switch"}]


def test_all_sections_are_there_in_order(plain):
    titles = (
        "What to do", "How to read this", "What was compared", "Trajectories", "Gap against tolerance",
        "Noise scale and batch size", "What was changed, and why", "How it was made", "All terms of this page",
    )  # fmt: skip
    places = [plain.text.index(title) for title in titles]
    assert places == sorted(places)
    assert headings(plain) == ["h1", "h2", "h2", "h2", "h3", "h3", "h3", "h3", "h2", "h2", "h2", "h2", "h2", "h2"]


def test_the_page_says_what_was_compared_and_what_same_means(plain):
    told = plain.text[plain.text.index("How to read this") :]
    assert "B = 4 is the run as it is, the base. It was made with 16 seeds. Each of the 4 runs below is changed" in told
    assert definition(0.05, 0.95) in told.replace("\N{NO-BREAK SPACE}", " ")
    assert "Range of B = 4, from 12,000 to 52,000 samples: train loss 0.476 (0.561 to 0.085)" in told.replace(
        "\N{NO-BREAK SPACE}", " "
    )


def test_terms_are_explained_and_those_of_users_are_text():
    page = render_page(replace(make_check(), task="the [[gap]] of mine"))
    assert "the [[gap]] of mine" in page
    used = set(re.findall(r'aria-describedby="(term-[^"]+)"', page))
    assert {"term-gap", "term-tolerance", "term-same", "term-noise-scale", "term-theorem"} <= used
    for anchor in used:
        assert page.count(f'<dd id="{anchor}">') == 1


def test_a_card_has_verdict_gap_band_and_causes_and_the_plan_its_guards(plain):
    card = plain.text[plain.text.index("B = 64, linearDifferent") :]
    card = card[: card.index("All test functions")]
    assert card.startswith(
        "B = 64, linearDifferent20.7 % (+0.0983) largest gap: train loss, at 24,000 samplesband 19.3 % to 22 %"
    )
    assert "Likely cause: the linear rule raises" in card
    assert "Likely cause: beta1, beta2" in card
    guard = "Guard: the linear rule is for SGD"
    assert guard not in card
    assert guard in plain.text[plain.text.index("What was changed, and why") :]
    check = make_check()
    alone = Parsed(render_page(replace(check, others=(replace(check.others[2], causes=()),)))).text
    assert guard in alone[: alone.index("All test functions")]


def test_plans_are_shown_with_reasons_and_the_way_it_was_made(plain):
    assert "lr0.00050.001x * kappa^(1/2)theoremkeeps sigma0" in plain.text
    assert "rule linear, κ = 16" in plain.text
    for part in (
        "rootscale check rootscale.lab.tasks:digits",
        "torch 2.13.0",
        "83.4 s (1 min 23 s)",
        "0–15",
        "100–115",
    ):
        assert part in plain.text


def test_colour_is_never_alone(plain):
    words = {"same": "Same", "different": "Different", "undecided": "Undecided"}
    text = render_page(make_check())
    badges = re.findall(r'<span class="badge (\w+)">(<svg.*?</svg>)(\w+)</span>', text)
    assert len(badges) == text.count('class="badge')
    assert {verdict for verdict, _, _ in badges} == set(words)
    for verdict, icon, word in badges:
        assert f"#icon-{verdict}" in icon
        assert word == words[verdict]
    dashes = {a["stroke-dasharray"] for tag, a in plain.tags if tag == "line" and "stroke-dasharray" in a}
    assert len(dashes) == 5  # arms differ in their dashes too
    assert len({style.svg for style in STYLES}) == len({style.colour for style in STYLES}) == len(STYLES)
    assert {style_of(i).svg for i in range(8, 16)} == {style.svg for style in STYLES}
    assert all(style_of(i).svg != style_of(i - 8).svg for i in range(8, 16))  # the colours again, with other dashes


def test_the_page_loads_nothing_and_embeds_plotly_once(plain):
    assert not [attributes for _, attributes in plain.tags if "src" in attributes or "srcset" in attributes]
    links = {attributes["href"] for _, attributes in plain.tags if "href" in attributes}
    assert all(link.startswith(("#", "data:")) for link in links)
    css = resources.files("rootscale.report").joinpath("page.css").read_text()
    assert "url(" not in css
    assert "@import" not in css
    assert [script.count("plotly.js v") for script in plain.scripts] == [0, 1, 0]
    policy = next(a["content"] for tag, a in plain.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.split(";")[1]


def test_all_curves_are_in_the_data(plain):
    data, check = plain.data, make_check()
    assert data["functions"] == list(FUNCTIONS[:-1])
    assert data["switches"] == [{"at": 12_000, "text": "switch"}]
    for arm, drawn in zip((check.base, *check.others), data["arms"], strict=True):
        assert drawn["label"] == arm.label
        assert drawn["x"][0] == 12_000
        assert drawn["x"][-1] == 52_000
        for i, name in enumerate(FUNCTIONS[:-1]):
            mean, se = arm.trajectory[name]
            np.testing.assert_allclose(drawn["curves"][i]["mean"], mean, rtol=1e-5)
            np.testing.assert_allclose(drawn["curves"][i]["se"], se, rtol=1e-5)
            if arm.comparison:
                gap = arm.comparison.gaps[name]
                np.testing.assert_allclose(drawn["gaps"][i]["high"], gap.high, rtol=1e-5, atol=1e-9)
    assert data["warm"]["x"][-1] == 12_000


def test_the_noise_scale_is_a_median_since_single_seeds_may_be_anything(plain):
    check = make_check()
    values = {name: np.array(value) for name, value in check.base.trajectory.values.items()}
    values["noise scale"][3, 10] = 1e14
    wild = replace(check, base=replace(check.base, trajectory=replace(check.base.trajectory, values=values)))
    calm, noise = plain.data["noise"]["base"], Parsed(render_page(wild)).data["noise"]["base"]
    np.testing.assert_allclose(noise["middle"], np.median(values["noise scale"], 0), rtol=1e-5)
    np.testing.assert_allclose(noise["middle"], calm["middle"], rtol=0.02)
    np.testing.assert_allclose(noise["low"], np.quantile(values["noise scale"], 0.05, axis=0), rtol=1e-5)


def test_a_card_and_the_plot_say_the_same_of_the_noise():
    check = make_check()
    arm = check.others[1]
    (cause,) = noise_cause(check.base.trajectory, 640, 2048)
    sized = replace(arm, plan=replace(arm.plan, batch_size=640), causes=(cause,))
    text = Parsed(render_page(replace(check, others=(sized,)))).text
    where = re.search(r"B = 640: (noise dominates [^:]*? on, not before)", text)[1]
    assert f"Likely cause: {where}: after 12,000 samples the noise scale is " in text


def test_the_colours_of_the_page_are_those_of_the_figures():
    css = resources.files("rootscale.report").joinpath("page.css").read_text()
    light = re.findall(r":root(?:\S*) \{(.*?)\n *\}", css, re.S)[0]
    assert re.findall(r"--arm-\d: (#\w{6})", light) == [style.colour for style in STYLES]
    assert re.findall(r"--(?:warm|strip): (#\w{6})", light) == [WARM, STRIP]


def test_the_noise_scale_leaves_the_figure_where_no_gradient_was_seen(plain):
    check = make_check()
    values = {name: np.array(value) for name, value in check.base.trajectory.values.items()}
    values["noise scale"][:, 10] = 1e14
    wild = replace(check, base=replace(check.base, trajectory=replace(check.base.trajectory, values=values)))
    noise = Parsed(render_page(wild)).data["noise"]
    assert max(noise["base"]["middle"]) == 1e14
    assert noise["levels"] == plain.data["noise"]["levels"]
    low, high = noise["levels"]
    middles = [*plain.data["noise"]["warm"]["middle"], *plain.data["noise"]["base"]["middle"]]
    assert low <= min(middles) * 1.00001
    assert high >= max(middles) * 0.99999


def test_svag_tests_the_theory_and_decides_nothing_about_a_change_of_the_batch_size():
    check = make_check()
    same, _, different, svag = check.others
    off = replace(svag, comparison=different.comparison)
    assert off.verdict == "different"
    assert replace(check, others=(same, off)).verdict == "same"
    assert not any("SVAG" in text for text in texts(replace(check, others=(same, off))))
    assert replace(check, others=(off,)).verdict == "different", "where nothing else was asked"


def test_several_arms_share_a_sentence():
    check = make_check()
    same, undecided, different, svag = check.others
    again = (replace(undecided, label="B = 128"), replace(different, label="hyperparameters, not the state"))
    assert texts(replace(check, others=(same, undecided, different, svag, *again))) == [
        "Same as B = 4, within 5 % of its range (train loss and test loss): B = 16",
        "Different from B = 4, by more than 5 % of its range (train loss and test loss): B = 64, linear: by up to "
        "20.7 % (train loss); hyperparameters, not the state: by up to 20.7 % (train loss)",
        "Undecided whether the same as B = 4 within 5 % of its range (train loss and test loss): B = 64: about 41 "
        "seeds would decide (there are 16); B = 128: about 41 seeds would decide (there are 16)",
    ]


def test_text_from_users_is_text_everywhere():
    plain, hostile = Parsed(render_page(make_check())), Parsed(render_page(with_text(HOSTILE)))
    assert "img" not in {tag for tag, _ in hostile.tags}
    assert {key for _, a in hostile.tags for key in a} == {key for _, a in plain.tags for key in a}
    assert len(hostile.scripts) == 3
    assert hostile.scripts[1:] == plain.scripts[1:]
    assert hostile.data["arms"][1]["label"] == HOSTILE
    assert hostile.data["functions"][0] == HOSTILE
    for place in ("<", ">", "&", "\u2028"):
        assert place not in hostile.scripts[0]
    # Title, heading, verdict, facts, card, choice, legend, tables, changes, how it was made: all of it is seen.
    assert hostile.text.count("<img src=x onerror=\"hacked=1\"><!-- '&amp;' $task ${data} </style>") > 50
    assert hostile.open == []


def test_what_is_not_finite_becomes_null():
    check = make_check(seeds=1)  # no standard errors
    parsed = Parsed(render_page(check))
    assert parsed.data["arms"][0]["curves"][0]["se"] == [None] * 41
    check = make_check()
    values = {name: np.array(value) for name, value in check.others[0].trajectory.values.items()}
    values["train loss"][:3, 20:] = np.nan
    values["train loss"][:, 40] = np.inf
    arm = check.others[0]
    lost = replace(arm, trajectory=replace(arm.trajectory, values=values))
    gap = arm.comparison.gaps["train loss"]
    unknown = np.full(41, np.nan)
    gaps = {
        **arm.comparison.gaps,
        "train loss": replace(gap, gap=unknown, low=unknown, high=unknown, verdict="different"),
    }
    lost = replace(lost, comparison=replace(arm.comparison, gaps=gaps))
    parsed = Parsed(render_page(replace(check, others=(lost,))))
    assert parsed.data["arms"][1]["curves"][0]["mean"][40] is None
    assert parsed.data["arms"][1]["gaps"][0]["gap"] == [None] * 41
    assert "(train loss and test loss):B = 16, 16 of 16 runs diverged" in parsed.text
    assert "Diverged: 16 of 16 runs diverged" in parsed.text


def test_runs_from_scratch_have_no_switch():
    parsed = Parsed(render_page(make_check(warm=False)))
    assert parsed.data["switches"] == []
    assert parsed.data["warm"] is None
    assert "before the switch" not in parsed.text
    assert "runs from scratch" in parsed.text


def test_no_number_of_seeds_decides_a_gap_on_the_tolerance():
    check = make_check()
    arm = check.others[1]
    gaps = {name: replace(gap, seeds_needed=None) for name, gap in arm.comparison.gaps.items()}
    check = replace(check, others=(replace(arm, comparison=replace(arm.comparison, gaps=gaps)),))
    [text] = texts(check)
    assert text.startswith("Undecided")
    assert "no number of seeds would decide" in text


def test_runs_that_diverge_can_decide_by_themselves():
    check = make_check()
    arm = check.others[0]
    values = {name: np.array(value) for name, value in arm.trajectory.values.items()}
    values["train loss"][:9, 30:] = np.nan
    lost = replace(arm, label="B = 256", trajectory=replace(arm.trajectory, values=values))

    told = replace(arm.comparison, diverged=(9, 0))
    assert told.verdict == "different"
    [text] = texts(replace(check, others=(replace(lost, comparison=told),)))
    assert text.endswith("B = 256: 9 of 16 runs diverged")
    few = replace(arm.comparison, diverged=(1, 0))
    assert few.verdict == "undecided"
    [text] = texts(replace(check, others=(replace(lost, comparison=few),)))
    assert f"about {few.seeds_needed} seeds would decide" in text
    none = replace(arm.comparison, diverged=(500, 501), seeds=(1001, 1001))
    assert none.verdict == "undecided"
    assert none.seeds_needed is None
    [text] = texts(replace(check, others=(replace(lost, comparison=none),)))
    assert "500 of 1001 runs diverged, of the base 501 of 1001: too few to tell" in text


def test_svag_has_the_plan_of_the_base_and_seeds_are_short():
    check = make_check()
    check = replace(check, others=(replace(check.others[3], changes=None),), made={"seeds": list(range(64))})
    text = Parsed(render_page(check)).text
    assert "SVAG ell = 2: the plan of the base, under SVAG" in text
    assert "seeds0–63" in text


def test_a_base_alone_has_no_verdict_and_what_was_not_measured_has_no_section():
    check = make_check()
    values = {name: value for name, value in check.base.trajectory.values.items() if name != "noise scale"}
    base = replace(check.base, trajectory=replace(check.base.trajectory, values=values))
    parsed = Parsed(render_page(Table(check.task, base, (), 0, {})))
    assert "Not judged: B = 4 was compared with nothing." in parsed.text
    assert "Noise scale and batch size" not in parsed.text
    assert "What was changed, and why" not in parsed.text
    assert parsed.data["noise"] is None


def test_runs_that_were_read_from_logs_have_neither_a_section_on_noise_nor_one_on_plans():
    samples, rng = np.arange(100, 4_001, 100), np.random.default_rng(0)
    sides = [{"samples": samples, "loss": np.exp(-samples / 900) + 0.01 * rng.normal(size=(4, 1))} for _ in range(2)]
    parsed = Parsed(render_page(compare(*sides, names=["a", "b"])))
    assert "Trajectories" in parsed.text
    for empty in ("Noise scale and batch size", "What was changed, and why", "say nothing of its plan"):
        assert empty not in parsed.text


def test_times_serve_where_samples_were_not_recorded():
    check = make_check()
    bare = [replace(arm, trajectory=replace(arm.trajectory, meta={})) for arm in (check.base, *check.others)]
    parsed = Parsed(render_page(replace(check, base=bare[0], others=tuple(bare[1:]), warm=None)))
    assert parsed.data["clock"] == "continuous time"
    assert parsed.data["arms"][0]["x"][-1] == pytest.approx(check.base.trajectory.times[-1], rel=1e-5)
    assert "not recorded" in parsed.text


def test_write_gives_the_page_and_leaves_nothing_else(tmp_path):
    check = make_check()
    assert write_page(check, tmp_path / "report.html").read_text(encoding="utf-8") == render_page(check)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_missing_plotly_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ValueError, match=r"needs plotly.*pip install 'rootscale\[report\]'"):
        render_page(make_check())


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a, b):
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_curves_stand_out_from_their_ground(scheme):
    css = resources.files("rootscale.report").joinpath("page.css").read_text()
    blocks = re.findall(r":root(?:\S*) \{(.*?)\n *\}", css, re.S)
    assert len(blocks) == 2
    colour = dict(re.findall(r"(--[\w-]+): (#\w{6})", blocks[scheme == "dark"]))
    for ground in ("--ground", "--surface"):
        for text in ("--ink", "--soft", "--accent", "--warning"):
            assert contrast(colour[text], colour[ground]) >= 4.5, (text, ground)
    for verdict in ("same", "different", "undecided"):
        for text in (f"--{verdict}", "--ink"):
            assert contrast(colour[text], colour[f"--{verdict}-ground"]) >= 4.5, (text, verdict)
    assert contrast(colour["--accent-ink"], colour["--accent"]) >= 4.5
    for line in ("--warm", "--strip", *(f"--arm-{i}" for i in range(8))):
        assert contrast(colour[line], colour["--surface"]) >= 2.4, line
