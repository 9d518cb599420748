import pytest
import torch

from rootscale import SGD, Adam, AdamW, Plan, RMSprop, Schedule
from rootscale.optimizers import FAMILIES
from rootscale.schedule import SHAPES
from rootscale.snippets import torch_code

pytestmark = pytest.mark.filterwarnings("ignore::rootscale.ScalingWarning")

PARAMETERS = {
    "exponential": {"every": 10, "gamma": 0.9},
    "step": {"every": 7},
    "multistep": {"milestones": [50, 80]},
    "polynomial": {"power": 2.5, "min_eta": 1e-5},
    "cosine": {"min_eta": 1e-5},
    "warmup-stable-decay": {"decay": 30, "min_eta": 1e-5},
}


def execute(plan):
    names = {"model": torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))}
    exec(torch_code(plan), names)
    return names


@pytest.mark.parametrize("to", [4, 16, 6])
@pytest.mark.parametrize("warm", [("linear", 0.0), ("linear", 0.1), ("exponential", 1e-3)])
@pytest.mark.parametrize("name", SHAPES)
def test_the_pasted_schedule_is_the_plans(name, warm, to):
    schedule = Schedule(name, warmup=12, warmup_shape=warm[0], warmup_start=warm[1], **PARAMETERS.get(name, {}))
    plan = Plan(Adam(1e-3, 0.99), 4, steps=100, schedule=schedule).at(to)
    names = execute(plan)
    optimizer, scheduler = names["optimizer"], names["scheduler"]
    for step in range(int(plan.total_steps)):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(plan.learning_rate(step), rel=1e-9, abs=1e-15)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(
    ("optimizer", "cls", "values"),
    [
        (Adam(1e-3, 0.9, 0.99, 1e-7, weight_decay=0.1), torch.optim.Adam, {"betas": (0.9, 0.96), "weight_decay": 0.1}),
        (AdamW(1e-3, 0.9, 0.99, 1e-7, weight_decay=0.1), torch.optim.AdamW, {"eps": 5e-8, "weight_decay": 0.2}),
        (RMSprop(1e-3, 0.99), torch.optim.RMSprop, {"alpha": 0.96, "lr": 2e-3}),
        (SGD(1e-3, 0.9, 0.1), torch.optim.SGD, {"lr": 4e-3, "momentum": 0.9, "weight_decay": 0.1}),
    ],
)
def test_the_pasted_optimizer_is_the_plans(optimizer, cls, values):
    made = execute(Plan(optimizer, 2).at(8))["optimizer"]
    assert type(made) is cls
    assert {key: made.param_groups[0][key] for key in values} == values


@pytest.mark.parametrize("name", [name for name, row in FAMILIES.items() if row.record.name == name])
def test_the_code_of_every_optimizer_can_be_pasted(name):
    row = FAMILIES[name]
    code = torch_code(Plan(row.record(1e-3), 2).at(8))
    if not row.torch.in_torch:
        assert not hasattr(torch.optim, row.torch.name)
        assert f"# torch has no {row.torch.name}: import it" in code
        compile(code, name, "exec")
        return
    model = torch.nn.Linear(2, 2, bias=False)  # Muon takes matrices only
    names = {"model": model}
    exec(code, names)
    made = names["optimizer"]
    assert type(made) is getattr(torch.optim, row.torch.name)
    if name == "rmsprop-centered":
        assert made.param_groups[0]["centered"] is True


def test_the_rest_is_pasted_too():
    plan = Plan(Adam(1e-3), 4, steps=10, ema=0.9, batchnorm_momentum=0.1, clip=1, intervals={"eval": 4}).at(8)
    names = execute(plan)
    assert names["model"][1].momentum == pytest.approx(0.19)
    assert "clip_grad_norm_(model.parameters(), 0.707" in torch_code(plan)
    assert "# every 2 steps: eval" in torch_code(plan)
    x = torch.nn.Parameter(torch.zeros(()))
    names["ema"].multi_avg_fn([x], [torch.ones(())], 1)
    assert x.item() == pytest.approx(0.19)


def test_what_torch_cannot_do_is_refused():
    with pytest.raises(ValueError, match=r"torch's optimizers have no eps inside the root, got eps_root=1e-08"):
        torch_code(Plan(Adam(1e-3, eps_root=1e-8), 4))
