"""Experiments that make one table: their lines, their stored numbers, and the pages made of them."""

import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from rootscale import records
from rootscale.paper.entries import entries_of
from rootscale.paper.experiments import experiments
from rootscale.paper.experiments.floors import BETAS, FORMS
from rootscale.paper.experiments.momentum_switch import KINDS, Lion
from rootscale.paper.experiments.switch_lines import KEPT, NULL
from rootscale.paper.finals import Final
from rootscale.paper.groups import GROUPS, TOLERANCE, Measured, cells_of
from rootscale.training import rescale_

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
ON_DIGITS = [name for name in experiments() if name.startswith(("floors-digits", "floors-convnet"))]


@pytest.fixture(scope="module")
def entries():
    return list(entries_of(RESULTS))


def lines_of(name):
    pytest.importorskip("sklearn")
    experiment = experiments()[name]
    return experiment.lines(experiment.options())


@pytest.mark.parametrize("name", ON_DIGITS)
def test_the_base_comes_first_its_null_second_and_no_two_lines_are_one_run(name):
    lines, settings = lines_of(name)
    assert lines[0].label.endswith(KEPT)
    assert lines[1].variant.other_samples
    assert lines[1].label.endswith(NULL)
    assert (settings.switch_at == 0) == name.endswith("scratch")
    plans = [(line.variant.kappa, line.variant.plan(line.task.plan).optimizer, line.variant.rule) for line in lines[2:]]
    assert len(set(plans)) == len(plans)


def test_the_papers_form_is_compared_where_it_exists():
    lines, _ = lines_of("floors-digits-95")
    sizes = {line.variant.kappa for line in lines if line.label.endswith(", paper")}
    assert sizes == {4, 8}, "1 - kappa (1 - .9) is above 0 for kappa < 10"


@pytest.mark.parametrize("betas", BETAS.values())
def test_betas_kept_converts_the_state_and_nothing_else_of_the_averages(betas):
    rule = FORMS["betas kept"].format(*betas)
    model = torch.nn.Linear(3, 2)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=betas)
    model(torch.randn(4, 3)).square().mean().backward()
    adam.step()
    before = {name: value.clone() for name, value in adam.state[model.weight].items()}
    rescale_(adam, 16, rule=rule)
    assert adam.param_groups[0]["betas"] == betas
    torch.testing.assert_close(adam.state[model.weight]["exp_avg_sq"], before["exp_avg_sq"] / 16)
    torch.testing.assert_close(adam.state[model.weight]["exp_avg"], before["exp_avg"] / 4)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("floors-digits-999", {"paper_batchnorm": True}, "each with its own row for BatchNorm: drop --paper-batchnorm"),
        ("muon-switch", {"eps": 1e-30}, "Muon is not run with another eps: drop --eps"),
    ],
)
def test_options_that_mean_nothing_here_are_refused(name, change, message):
    pytest.importorskip("sklearn")
    experiment = experiments()[name]
    with pytest.raises(ValueError, match=message):
        experiment.lines(experiment.options(smoke=True, **change))


def test_lion_takes_the_step_of_its_formula():
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(5, dtype=torch.float64))
    theta, m = p.detach().clone(), torch.zeros(5, dtype=torch.float64)
    lion = Lion([p], lr=0.1, betas=(0.9, 0.99), weight_decay=0.02)
    for _ in range(3):
        g = torch.randn(5, dtype=torch.float64)
        p.grad = g.clone()
        lion.step()
        theta = theta - 0.1 * (torch.sign(0.9 * m + 0.1 * g) + 0.02 * theta)
        m = 0.99 * m + 0.01 * g
    torch.testing.assert_close(p.detach(), theta)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_trains_the_matrices_of_the_layers_and_adamw_the_rest():
    shapes = [(256, 64), (16, 64), (64,), (64, 192), (192,), (64, 64), (64, 256), (256, 64)]
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    tokens = parameters[:2]
    tokens[0] = parameters[0] = torch.nn.Parameter(torch.zeros(32, 64))  # fewer tokens than units, as bytes
    muon, adamw = KINDS["muon"].make(parameters, KINDS["muon"].record).optimizers
    inner = {tuple(p.shape) for group in muon.param_groups for p in group["params"]}
    assert inner == {(64, 192), (64, 64), (64, 256), (256, 64)}
    assert sum(len(group["params"]) for group in adamw.param_groups) == 4
    assert isinstance(KINDS["muon"].record, records.Muon)


def measured(gap, se=0.01):
    return Measured(4, "form", Final("8 → 32, form", 32, 4, 0, {}, {}, 0.0), gap, se)


def test_a_form_keeps_the_run_where_its_gap_is_little_more_than_the_nulls():
    null = measured(-0.04)
    assert measured(0.04 + TOLERANCE - 0.001).keeps(null)
    assert not measured(0.04 + TOLERANCE + 0.001).keeps(null)
    assert measured(0.2, se=0.1).keeps(null), "within two errors"
    assert not measured(math.inf, 0.0).keeps(null)
    assert measured(0.05).text(null) == "**5.0 ± 1.0 %**"
    assert measured(math.inf, 0.0).text(null) == "diverged"


@pytest.mark.parametrize("name", GROUPS)
def test_the_page_of_a_group_is_made_of_what_is_stored(name, entries):
    group, own = GROUPS[name], [entry for entry in entries if entry.experiment.group == name and entry.there]
    page = (RESULTS / name / "README.md").read_text(encoding="utf-8")
    assert group.page(cells_of(entries, name), own) == page
    assert (RESULTS / name / "gaps.png").exists()


def test_forms_are_compared_with_the_first_where_both_were_run(entries):
    cells, group = cells_of(entries, "floors"), GROUPS["floors"]
    counts = {form: group.shared(cells, form) for form in group.told}
    assert counts["floors .9, .9"].kept == counts["floors .9, .9"].first
    for form, both in counts.items():
        keys = [
            {(cell.name, k) for cell in cells if not cell.scratch for k, f in cell.found if f == name and k <= 16}
            for name in (form, group.told[0])
        ]
        assert both.cases == len(keys[0] & keys[1])
    words = group.words(cells)
    for form in group.told[1:]:
        both = counts[form]
        assert f"{form}: {both.kept} of {both.cases} ({both.first})" in words
    last = counts[group.told[-1]]
    assert group.headline(cells).startswith(f"Of {last.cases} switches")


def test_beta1_of_the_advice_stays_above_the_floor():
    for kappa, beta1 in ((4, 0.975), (16, 0.994)):
        assert 1 - Fraction(kappa) * (1 - Fraction(str(beta1))) >= Fraction(9, 10)
