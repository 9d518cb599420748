"""What is said of how far a rule holds comes from the table of evidence, and the table from the stored studies."""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from rootscale import SGD, Adam, AdamW, Plan, RMSprop, Schedule
from rootscale.cli import main
from rootscale.evidence import answers, cases, cases_of, doubts, few_steps, fewest_steps, from_scratch, promise
from rootscale.optimizers import FAMILIES

ROOT = Path(__file__).parents[1]
EXAMPLE = "scale --optimizer adamw --lr 3e-4 --betas .9 .95 --batch-size 8 --to 8192 --steps 100000 --warmup-steps 2000"


@pytest.fixture(scope="module")
def built():
    sys.path.insert(0, str(ROOT / "experiments"))
    try:
        import evidence as builder
    finally:
        sys.path.pop(0)
    return builder


def test_the_shipped_table_is_what_the_stored_studies_give(tmp_path):
    # In a process of its own: studies add rules of their own.
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    program = ROOT / "experiments" / "evidence.py"
    subprocess.run([sys.executable, str(program), "--to", str(tmp_path / "evidence.csv")], env=env, check=True)
    built = (tmp_path / "evidence.csv").read_text(encoding="utf-8")
    shipped = (ROOT / "src" / "rootscale" / "evidence.csv").read_text(encoding="utf-8")
    assert shipped == built, "python experiments/evidence.py writes it anew"


def test_a_study_whose_net_is_not_named_is_refused(built):
    with pytest.raises(ValueError, match="names no net of the study 'sonnets'"):
        built.net_of("sonnets")
    assert built.net_of("momentum-muon-plain-digits") == "MLP with plain momentum"


def test_a_case_counts_once():
    rows = cases_of("adam", what="everything", switched=True, kappa=64)
    assert len({row.case for row in rows}) == len(rows)
    twice = [row for row in rows if (row.net, row.beta2) == ("MLP", 0.999) and row.stages == 1 and not row.late]
    assert len(twice) == 1, "two studies have it: floors-digits-999 and stages-mlp-0.999"
    assert cases([*rows, *rows]) == rows


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cell_without_data_says_so(family):
    for rule in FAMILIES[family].rules:
        measured = [row for row in cases_of(family) if row.verdict and row.switched]
        for one in answers(family, rule):
            assert one.promise
            if not measured:
                assert one.promise.startswith(f"No switch of {FAMILIES[family].record.__name__}")


def numbers_of(rows):
    """What a sentence may say of cases."""
    gaps = sorted(abs(row.gap) for row in rows)
    verdicts = [f"{n} {name}" for name in ("same", "undecided", "different") if (n := count(rows, name))]
    return gaps[0], gaps[-1], verdicts


def count(rows, verdict):
    return sum(row.verdict == verdict for row in rows)


def test_every_number_of_a_sentence_is_that_of_its_cases():
    for kappa in (4, 8, 16, 64):
        rows = [
            row
            for row in cases_of("adam", what="everything", switched=True, stages=1, late=False, kappa=kappa)
            if row.verdict
        ]
        low, high, verdicts = numbers_of(rows)
        said = promise("adam", "sqrt", kappa)
        assert f"{len(rows)} cases of Adam and AdamW" in said
        assert f"{', '.join(verdicts)}; largest gaps" in said
        first, last = map(float, re.search(r"largest gaps ([\d.]+) to ([\d.]+) %", said).groups())
        assert (first, last) == (pytest.approx(100 * low, rel=0.06), pytest.approx(100 * high, rel=0.06))
        assert promise("adamw", "sqrt", kappa * 0.9) == said, "up to the next kappa that was measured"


def test_the_command_line_and_the_plan_say_what_the_table_has(capsys):
    assert main([*EXAMPLE.split(), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["evidence"][-1] == promise("adamw", "sqrt", 1024)
    assert doubts("adamw", "sqrt", 1024)[0] in said["warnings"]
    assert doubts("adamw", "sqrt", 1024)[0].startswith("1,024 times the batch at once: at 64 times 4 of 4 ")
    assert {row["status"] for row in said["changes"]} == {"derived", "measured"}, "no theorem is about AdamW at a floor"


def test_an_ordinary_change_has_no_warning_and_muons_has():
    for optimizer in (Adam(1e-3), AdamW(1e-3, 0.9, 0.95), RMSprop(1e-3)):
        assert Plan(optimizer, batch_size=256, steps=10_000).convert(1024).warnings == ()
    (warning,) = doubts("muon", "normalized-sqrt", 16)
    assert "became another run" in warning
    assert "the rule normalized-half was nearer" in warning
    assert doubts("adam", "sqrt", 0.25) == []
    assert doubts("soap", "sqrt", 64) == doubts("adam", "sqrt", 64), "Adam's own are all that there is"
    batchnorm = Plan(Adam(1e-3), batch_size=16, steps=10_000, batchnorm_momentum=0.1)
    assert "at most 4 times" in batchnorm.convert(256).warnings[0]


def test_a_run_says_what_was_measured_of_it():
    torch = pytest.importorskip("torch")
    from rootscale import Run
    from rootscale.changes import ScalingWarning
    from rootscale.training import rescale_

    def warned(step, optimizer):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            run = step(optimizer)
        return run, [str(one.message) for one in said if issubclass(one.category, ScalingWarning)]

    def fresh(cls=torch.optim.Adam):
        return cls([torch.ones(2, requires_grad=True)], lr=1e-3)

    def take(run, optimizer):
        optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
        optimizer.step()
        return run

    optimizer = fresh()
    run, said = warned(lambda one: take(Run(one, tuned_at=4), one), optimizer)
    assert said == []
    _, said = warned(lambda _: setattr(run, "batch_size", 16), optimizer)
    assert said == [], "four times in mid-run is an ordinary change"
    assert "Measured in mid-run at 4 times the batch" in str(run.changes)
    _, said = warned(lambda _: setattr(run, "batch_size", 16 * 64), optimizer)
    assert said == doubts("adam", "sqrt", 64), "of the jump, not of the way from the tuned batch"
    _, said = warned(lambda one: rescale_(one, 64), fresh())
    assert said == doubts("adam", "sqrt", 64)

    started = fresh()
    run, said = warned(lambda one: Run(one, tuned_at=4, batch_size=16), started)
    assert said == []
    _, said = warned(lambda one: take(run, one), started)
    (message,) = said
    assert message.startswith("the run starts at 4 times the batch that was tuned: from scratch at 4 times 6 of 6 ")
    assert message == from_scratch("adam", "sqrt", 4)[0]
    resumed = fresh()
    resumed_run = Run(resumed, tuned_at=4, batch_size=16)
    resumed.load_state_dict(optimizer.state_dict())
    assert warned(lambda one: take(resumed_run, one), resumed)[1] == []


def test_few_steps_are_warned_of():
    least = fewest_steps()
    kept = [row.steps for row in cases_of(what="everything", switched=True) if row.verdict in ("same", "undecided")]
    assert least == int(min(kept))
    assert few_steps(least, 4) == [] == few_steps(1, 0.25)
    plan = Plan(Adam(1e-3), batch_size=256, steps=4 * (least - 1))
    assert plan.convert(1024).warnings == (few_steps(least - 1, 4)[0],)


@pytest.mark.parametrize(
    ("plan", "covered"),
    [
        (Plan(Adam(1e-3, 0.98, 0.999), batch_size=256, steps=1000), True),
        (Plan(Adam(1e-3, 0.98, 0.999, weight_decay=0.1), batch_size=256, steps=1000, ema=0.999), True),
        (Plan(RMSprop(1e-3), batch_size=256, steps=1000), True),
        (Plan(SGD(1e-3, momentum=0.9), batch_size=256, steps=1000), True),
        (Plan(Adam(1e-3), batch_size=256, steps=1000), False),
        (Plan(AdamW(1e-3, 0.98, 0.999), batch_size=256, steps=1000), False),
        (Plan(Adam(1e-3, 0.98, 0.999), batch_size=256, steps=1000, schedule=Schedule("cosine")), False),
        (Plan(Adam(1e-3, 0.98, 0.999), batch_size=256, steps=1000, schedule=Schedule(warmup=8)), False),
        (Plan(Adam(1e-3, 0.98, 0.999), batch_size=256, steps=1000, clip=1.0), False),
    ],
)
def test_only_a_run_that_the_theorem_covers_is_a_theorem(plan, covered):
    changes = plan.convert(1024).changes
    assert (changes["lr"].status == "theorem") is covered
    assert any("No theorem covers this run as a whole" in text for text in changes.evidence) is not covered
    assert changes["lr"].to_dict()["source"], "its power is still the theorem's"


def test_floors_return_on_paper():
    plan = Plan(AdamW(3e-4, 0.9, 0.95), batch_size=256, steps=100_000)
    large = plan.at(4096)
    assert (large.optimizer.beta1, large.optimizer.beta2) == (0.9, 0.9)
    assert large.at(256) == plan
    assert large.at(1024) == plan.at(1024)
    back = large.explain(256)["beta2"]
    assert (back.after, back.status) == (0.95, "derived")
    assert "tuned at 256" in back.why


def test_a_file_of_a_plan_carries_what_it_was_tuned_at(tmp_path, capsys):
    assert main("scale --optimizer adam --lr 1e-3 --betas .9 .95 --batch-size 256 --to 4096 --json".split()) == 0
    there = json.loads(capsys.readouterr().out)["to"]
    (tmp_path / "plan.json").write_text(json.dumps(there))
    assert main(["scale", "--plan", str(tmp_path / "plan.json"), "--to", "256", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["to"]["optimizer"]["beta2"] == 0.95
    edited = Plan.from_dict({**there, "optimizer": {**there["optimizer"], "eta": 0.01}})
    assert edited.tuned is None, "its numbers are its own"
    with pytest.raises(ValueError, match="tuned must be an object"):
        Plan.from_dict({**there, "tuned": 256})


def test_the_page_says_what_the_map_predicts():
    sys.path.insert(0, str(ROOT / "experiments"))
    try:
        import map_of_switches
    finally:
        sys.path.pop(0)
    (claim,) = map_of_switches.claims(ROOT / "results")
    found = dict(re.findall(r"([a-z][a-z ]+?) (\d+) of 21", claim.outcome))
    text = " ".join((ROOT / "docs" / "how-far.md").read_text(encoding="utf-8").split())
    (two, kappa, steps) = re.search(
        r"in (\d+) of 21 switches; kappa alone does in (\d+), .*? left in (\d+) \(", text
    ).groups()
    assert (two, kappa, steps) == (found["the two numbers"], found["kappa"], found["the steps left"])
    assert int(two) < int(kappa), "contradicted: kappa alone predicts better"
