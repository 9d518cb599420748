import sys
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from report.fixtures import FUNCTIONS, few, make_check, unjudged, with_text

from rootscale.report import draw_curves, draw_figures
from rootscale.report.styles import STYLES
from rootscale.trajectory import Trajectory
from rootscale.verdict import compare


def test_each_test_function_is_a_figure_in_each_format(tmp_path):
    names = ("train loss", "noise scale")
    written = draw_figures(few(make_check(), *names), tmp_path / "new" / "folder")
    assert [path.name for path in written] == [
        f"{stem}.{kind}" for stem in ("train-loss", "noise-scale") for kind in ("png", "pdf")
    ]
    for path in written:
        start = path.read_bytes()[:5]
        assert start == (b"%PDF-" if path.suffix == ".pdf" else b"\x89PNG\r")
    with Image.open(written[0]) as two, Image.open(written[2]) as one:
        assert two.height > one.height  # the noise scale is not compared: no panel of gaps
        colours = {tuple(pixel) for _, pixel in two.convert("RGB").getcolors(1 << 24)}
    assert {(0x1D, 0x21, 0x26), (0xC4, 0x62, 0x9A), (0xD9, 0x8E, 0x00)} <= colours


def test_runs_that_were_not_judged_have_gaps_without_bands(tmp_path):
    check = few(unjudged(make_check()), "train loss")
    flat = np.zeros_like(check.base.trajectory.values["train loss"])
    base = replace(check.base.trajectory, values={"train loss": flat})
    others = tuple(replace(arm, comparison=compare(base, arm.trajectory)) for arm in check.others)
    still = replace(check, base=replace(check.base, trajectory=base), others=others)
    heights = []
    for folder, one in (("gaps", check), ("flat", still)):
        [path] = draw_figures(one, tmp_path / folder, ["png"])
        with Image.open(path) as image:
            heights.append(image.height)
    assert heights[0] > heights[1]  # a flat curve has no range, and no gap is a share of it


def test_the_same_check_gives_the_same_files(tmp_path):
    check = few(make_check(warm=False), "train loss")
    first, second = (draw_figures(check, tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


@pytest.mark.parametrize("text", ["_$\\frac{$ & %", "../../etc/x", "損失"])
def test_users_text_is_neither_mathematics_nor_a_path(tmp_path, text, recwarn):
    check = few(replace(with_text(text), warm=None, others=with_text(text).others[:1]), text)
    [path] = draw_figures(check, tmp_path / "figures", ["png"])
    assert path.parent == tmp_path / "figures"
    assert all("Glyph" in str(warning.message) for warning in recwarn)


def test_an_unknown_format_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(ValueError, match="figures are made as png and pdf, got 'gif'"):
        draw_figures(make_check(), tmp_path / "figures", ["png", "gif"])
    assert not (tmp_path / "figures").exists()


def test_a_missing_matplotlib_is_named_with_its_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"need matplotlib.*pip install 'rootscale\[plot\]'"):
        draw_figures(make_check(), tmp_path)


def test_names_that_look_alike_get_files_of_their_own(tmp_path):
    check = few(make_check(), FUNCTIONS[0])
    base = replace(check.base, trajectory=replace(check.base.trajectory, values={
        "a b": check.base.trajectory.values[FUNCTIONS[0]], "A-b": check.base.trajectory.values[FUNCTIONS[0]],
    }))  # fmt: skip
    written = draw_figures(replace(check, base=base, others=(), warm=None), tmp_path, ["png"])
    assert [path.name for path in written] == ["a-b.png", "a-b-2.png"]


def test_curves_are_drawn_on_axes_of_ones_own():
    axes = Figure().subplots()
    runs = {
        name: Trajectory.of_runs([1000, 2000], {"loss": [[level, 0.5], [level, 0.3]]})
        for name, level in (("kept", 1.0), ("$B = 64$", 2.0))
    }
    draw_curves(axes, runs, "loss")
    assert [line.get_color() for line in axes.lines] == [style.colour for style in STYLES[:2]]
    assert axes.lines[1].get_ydata().tolist() == [2.0, 0.4]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["kept", r"\$B = 64\$"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("samples seen", "loss")
    with pytest.raises(ValueError, match="at least one set of runs to draw, got none"):
        draw_curves(axes, {}, "loss")
