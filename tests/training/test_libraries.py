"""Optimizers of libraries, live where the library is here, and by their names and keys where it is not."""

import sys

import pytest
import torch
from torch import nn

from rootscale import ScalingWarning
from rootscale.spellings.libraries import LIBRARIES, spelled
from rootscale.training import rescale_
from rootscale.training.adapters import families_of, family_of


@pytest.fixture(autouse=True)
def bitsandbytes_forgets():
    """Take back what `transformers.Trainer` tells bitsandbytes: numbers of parameters to keep in 32 bits, for good."""
    if "bitsandbytes" in sys.modules:
        sys.modules["bitsandbytes"].optim.GlobalOptimManager.get_instance().initialize()


def parameters(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes or [(80, 64), (16,)]]


def trained(optimizer, steps=8):
    if hasattr(optimizer, "train"):
        optimizer.train()
    for seed in range(steps):
        generator = torch.Generator().manual_seed(seed)
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()
    return optimizer


def library(module, name, *, shapes=(), **options):
    """A trained optimizer of a library that may not be here."""
    cls = getattr(pytest.importorskip(module), name)
    return trained(cls(parameters(*shapes), **options))


# ---- torch


@pytest.mark.parametrize(
    ("cls", "options", "family", "factors"),
    [
        ("Adam", {"amsgrad": True}, "adam", {"exp_avg_sq": 1 / 4, "max_exp_avg_sq": 1 / 4, "step": 1 / 4}),
        ("NAdam", {}, "nadam", {"exp_avg_sq": 1 / 4, "mu_product": 1, "step": 1 / 4}),
        ("RAdam", {}, "radam", {"exp_avg_sq": 1 / 4, "step": 1 / 4}),
        ("Adamax", {}, "adamax", {"exp_inf": 1 / 2, "step": 1 / 4}),
        ("Adagrad", {}, "adagrad", {"sum": 1 / 16, "step": 1 / 4}),
        ("RMSprop", {"momentum": 0.9}, "rmsprop-momentum", {"square_avg": 1 / 4, "momentum_buffer": 1, "step": 1 / 4}),
        ("SGD", {"momentum": 0.9}, "sgd", {"momentum_buffer": 1 / 2}),
        ("Adafactor", {}, "adafactor", {"row_var": 1 / 4, "col_var": 1 / 4, "variance": 1 / 4, "step": 1 / 4}),
    ],
)
def test_the_state_of_torch_is_converted(cls, options, family, factors):
    optimizer = trained(getattr(torch.optim, cls)(parameters(), lr=1e-3, **options))
    assert family_of(optimizer).name == family
    before = [{k: v.clone() for k, v in state.items() if k in factors} for state in optimizer.state.values()]
    rescale_(optimizer, 4)
    for old, state in zip(before, optimizer.state.values(), strict=True):
        for key, value in old.items():
            torch.testing.assert_close(state[key], value * factors[key])
    trained(optimizer, 1)


def test_the_bound_of_adafactors_second_moment_is_left_to_the_user_in_words():
    bounded = trained(torch.optim.Adafactor(parameters(), eps=(1e-3, 1e-3)))
    with pytest.warns(ScalingWarning, match=r"eps\[0\] = 0.001 .* set group\['eps'\] = \(0.0005, 0.001\)"):
        rescale_(bounded, 4)
    assert not rescale_(trained(torch.optim.Adafactor(parameters())), 4).warnings


def test_nadams_ramp_follows_the_clock():
    optimizer = trained(torch.optim.NAdam(parameters(), momentum_decay=4e-3))
    assert rescale_(optimizer, 4)["momentum_decay"].after == 0.016


def test_only_the_noise_of_a_centered_second_moment_is_converted():
    optimizer = trained(torch.optim.RMSprop(parameters(), centered=True))
    before = [(s["square_avg"].clone(), s["grad_avg"].clone()) for s in optimizer.state.values()]
    rescale_(optimizer, 4)
    for (v, mean), state in zip(before, optimizer.state.values(), strict=True):
        torch.testing.assert_close(state["square_avg"], mean**2 + (v - mean**2) / 4)
        assert torch.equal(state["grad_avg"], mean)
    trained(optimizer, 1)


def test_groups_of_rmsprop_may_be_of_several_families():
    one, two = parameters()
    optimizer = torch.optim.RMSprop([{"params": [one], "momentum": 0.9}, {"params": [two]}], lr=1e-3)
    assert [(row.name, groups) for row, groups in families_of(optimizer)] == [
        ("rmsprop-momentum", [0]),
        ("rmsprop", [1]),
    ]
    trained(optimizer)
    changes = rescale_(optimizer, 4)
    assert changes["lr (group 0)"].after == changes["lr (group 1)"].after == 2e-3


@pytest.mark.parametrize("second", [{}, {"centered": True}])
def test_a_group_that_is_added_later_starts_at_the_new_batch_size(second):
    one, two = parameters()
    optimizer = torch.optim.RMSprop([{"params": [one], "momentum": 0.9}, {"params": [two], **second}], lr=1e-3)
    rescale_(optimizer, 4)
    optimizer.add_param_group({"params": parameters()})
    assert [group["lr"] for group in optimizer.param_groups] == [2e-3] * 3
    rescale_(optimizer, 1 / 4)
    assert (optimizer.defaults["lr"], optimizer.defaults["alpha"]) == (1e-3, pytest.approx(0.99))


def test_momentum_in_samples_needs_momentum():
    optimizer = trained(torch.optim.SGD(parameters(), lr=0.1, momentum=0.9))
    changes = rescale_(optimizer, 4, rule="linear-time")
    assert changes["lr"].after == pytest.approx(1.6)
    assert changes["momentum"].after == pytest.approx(0.6)
    assert changes["factor of momentum_buffer"].after == 0.25
    with pytest.raises(ValueError, match=r"momentum becomes .* for x above 0"):
        rescale_(torch.optim.SGD(parameters(), lr=0.1), 4, rule="linear-time")


# ---- state in few bits


def dequantized(state, number):
    """The values that bitsandbytes' codes and scales stand for, to the order of their blocks."""
    codes, scales, table = (state[f"{key}{number}"] for key in ("state", "absmax", "qmap"))
    return table[codes.long()].flatten() * scales.repeat_interleave(codes.numel() // scales.numel())


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("name", ["Adam8bit", "AdamW8bit", "PagedAdamW8bit"])
def test_the_scales_of_8_bit_adam_are_converted_and_its_codes_are_not(name):
    optimizer = library("bitsandbytes.optim", name, lr=1e-3, betas=(0.98, 0.999), weight_decay=0.01)
    large, small = optimizer.state.values()
    codes, values, scales = large["state2"].clone(), dequantized(large, 2), large["absmax1"].clone()
    plain = small["state2"].clone()
    changes = rescale_(optimizer, 4)
    assert torch.equal(large["state2"], codes)
    torch.testing.assert_close(dequantized(large, 2), values / 4)
    assert torch.equal(large["absmax1"], scales)  # m stays, where beta1 does not stop at its floor
    torch.testing.assert_close(small["state2"], plain / 4)
    assert (large["step"], type(large["step"])) == (2, int)
    assert changes["weight_decay"].after == 0.02  # bitsandbytes decays as AdamW does, in Adam too
    trained(optimizer, 1)


def test_a_whole_step_counter_is_rounded():
    optimizer = library("bitsandbytes.optim", "AdamW8bit")
    trained(optimizer, 2)
    rescale_(optimizer, 4)
    assert [state["step"] for state in optimizer.state.values()] == [2, 2]  # 2.5


def test_8_bit_lion_follows_lions_rule():
    optimizer = library("bitsandbytes.optim", "Lion8bit", lr=1e-4)
    scales = next(iter(optimizer.state.values()))["absmax1"].clone()
    rescale_(optimizer, 4)
    torch.testing.assert_close(next(iter(optimizer.state.values()))["absmax1"], scales / 2)
    assert optimizer.param_groups[0]["lr"] == 2e-4


def test_only_the_fast_average_of_ademamix_follows_a_floor_of_beta1():
    optimizer = library("bitsandbytes.optim", "AdEMAMix8bit", betas=(0.9, 0.999, 0.9999))
    large, small = optimizer.state.values()
    scales, plain = large["absmax1"].clone(), small["state1"].clone()
    factor = rescale_(optimizer, 4)["factor of state1[0]"].after
    assert factor < 1
    torch.testing.assert_close(large["absmax1"], scales * torch.tensor([[factor], [1.0]]))
    torch.testing.assert_close(small["state1"][0], plain[0] * factor)
    assert torch.equal(small["state1"][1], plain[1])


@pytest.mark.parametrize("name", ["RMSprop8bit", "Adagrad8bit", "SGD8bit"])
def test_other_8_bit_optimizers_of_bitsandbytes(name):
    factor = {"RMSprop8bit": 1 / 4, "Adagrad8bit": 1 / 16, "SGD8bit": 1 / 2}[name]
    optimizer = library("bitsandbytes.optim", name, lr=1e-3, **({"momentum": 0.9} if name == "SGD8bit" else {}))
    scales = next(iter(optimizer.state.values()))["absmax1"].clone()
    rescale_(optimizer, 4)
    torch.testing.assert_close(next(iter(optimizer.state.values()))["absmax1"], scales * factor)
    trained(optimizer, 1)


def test_bitsandbytes_lamb_is_refused_as_it_is_none():
    with pytest.raises(TypeError, match=r"LAMB8bit has no rule .* does not normalise them"):
        rescale_(library("bitsandbytes.optim", "LAMB8bit"), 4)


@pytest.mark.parametrize("name", ["AdamW8bit", "Adam4bit", "AdamWFp8"])
def test_the_scales_of_torchaos_adam_are_converted(name):
    optimizer = library("torchao.optim", name, shapes=[(80, 64)], betas=(0.98, 0.999))
    state = next(iter(optimizer.state.values()))
    codes, values = state["exp_avg_sq"].codes.clone(), state["exp_avg_sq"].dequantize().clone()
    rescale_(optimizer, 4)
    assert torch.equal(state["exp_avg_sq"].codes, codes)
    torch.testing.assert_close(state["exp_avg_sq"].dequantize(), values / 4)
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(2e-3)
    trained(optimizer, 1)


# ---- other libraries


@pytest.mark.parametrize(
    ("module", "name", "options", "values", "factors"),
    [
        ("lion_pytorch", "Lion", {"weight_decay": 0.1}, {"lr": 2e-4, "weight_decay": 0.2}, {"exp_avg": 1 / 2}),
        ("pytorch_optimizer", "Lion", {"weight_decay": 0.1}, {"lr": 2e-4, "weight_decay": 0.2}, {"exp_avg": 1 / 2}),
        ("pytorch_optimizer", "AdEMAMix", {"t_alpha_beta3": 100}, {"lr": 2e-3, "t_alpha_beta3": 25, "step": 2},
         {"exp_avg_sq": 1 / 4, "exp_avg_slow": 1}),
        ("pytorch_optimizer", "SOAP", {"precondition_frequency": 8}, {"precondition_frequency": 2, "step": 2},
         {"exp_avg_sq": 1 / 4, "GG": 1 / 4}),
        ("pytorch_optimizer", "Lamb", {}, {"lr": 1e-3 * 4**0.75, "max_grad_norm": 0.5, "step": 2},
         {"exp_avg_sq": 1 / 4}),
        ("pytorch_optimizer", "ScheduleFreeAdamW", {}, {"lr_max": 5e-3, "step": 2}, {"exp_avg_sq": 1 / 4}),
        ("schedulefree", "AdamWScheduleFree", {"warmup_steps": 8},
         {"lr": 5e-3, "k": 2, "lr_max": 5e-3, "warmup_steps": 2}, {"exp_avg_sq": 1 / 4, "z": 1}),
        ("schedulefree", "SGDScheduleFree", {"lr": 1e-3}, {"lr": 4e-3, "k": 2, "lr_max": 4e-3, "weight_sum": 3.2e-5},
         {"z": 1}),
        ("transformers.optimization", "Adafactor", {"lr": 1e-3, "relative_step": False, "beta1": 0.98},
         {"lr": 2e-3, "beta1": 0.92}, {"exp_avg_sq_row": 1 / 4, "exp_avg_sq_col": 1 / 4, "exp_avg": 4}),
    ],
)  # fmt: skip
def test_a_librarys_optimizer_is_converted(module, name, options, values, factors):
    optimizer = library(module, name, shapes=[(8, 6)], **options)
    before = [
        {k: [one.clone() for one in (v if isinstance(v, list) else [v])] for k, v in state.items() if k in factors}
        for state in optimizer.state.values()
    ]
    rescale_(optimizer, 4)
    for key, value in values.items():
        assert optimizer.param_groups[0][key] == pytest.approx(value), key
    for old, state in zip(before, optimizer.state.values(), strict=True):
        for key, tensors in old.items():
            for was, now in zip(tensors, state[key] if isinstance(state[key], list) else [state[key]], strict=True):
                torch.testing.assert_close(now, was * factors[key])
    trained(optimizer, 1)


def test_adafactors_relative_step_is_refused_with_what_to_do():
    optimizer = library("transformers.optimization", "Adafactor")
    with pytest.raises(
        ValueError, match=r"group 0 of Adafactor with relative_step=True: .*give lr and relative_step=False"
    ):
        rescale_(optimizer, 4)


def test_weights_of_schedule_free_that_are_not_known_are_refused():
    optimizer = library("schedulefree", "AdamWScheduleFree", r=1.0)
    with pytest.raises(ValueError, match=r"group 0 of AdamWScheduleFree with r=1\.0: the sum of its weights"):
        rescale_(optimizer, 4)


@pytest.mark.parametrize("flags", [("use_fallback", True), ("use_muon", False)])
def test_groups_that_timms_muon_leaves_to_adam_are_adams(flags):
    cls = pytest.importorskip("timm.optim.muon").Muon
    matrix, vector = parameters((8, 6), (6,))
    optimizer = trained(cls([{"params": [matrix]}, {"params": [vector], flags[0]: flags[1]}], lr=1e-3))
    assert [row.name for row, _ in families_of(optimizer)] == ["muon", "adamw"]
    buffer, second = optimizer.state[matrix]["momentum_buffer"].clone(), optimizer.state[vector]["exp_avg_sq"].clone()
    rescale_(optimizer, 4, rule={"muon": "normalized-half"})
    torch.testing.assert_close(optimizer.state[matrix]["momentum_buffer"], buffer * 4**-0.25)
    torch.testing.assert_close(optimizer.state[vector]["exp_avg_sq"], second / 4)
    trained(optimizer, 1)


def test_a_group_that_timms_muon_splits_by_shapes_is_refused():
    optimizer = library("timm.optim.muon", "Muon", shapes=[(8, 6), (6,)], lr=1e-3)
    with pytest.raises(TypeError, match="a group of muon has parameters with exp_avg"):
        rescale_(optimizer, 4)


# ---- by names and keys alone, for libraries that cannot be here


class FusedAdam(torch.optim.Optimizer):
    """Apex's and DeepSpeed's: the step counter is a number of the group, the kind of decay one of the object."""

    def __init__(self, params, adam_w_mode=True):
        super().__init__(params, {"lr": 1e-3, "betas": (0.98, 0.999), "eps": 1e-8, "weight_decay": 0.1})
        self.adam_w_mode = adam_w_mode

    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                self.state[p] = {"exp_avg": p.grad.clone(), "exp_avg_sq": p.grad.square()}


@pytest.mark.parametrize(("mode", "decay"), [(True, 0.2), (False, 0.1)])
def test_fused_adam_is_known_by_its_name_and_keys(mode, decay):
    optimizer = trained(FusedAdam(parameters(), mode))
    before = [state["exp_avg_sq"].clone() for state in optimizer.state.values()]
    rescale_(optimizer, 4)
    assert (optimizer.param_groups[0]["weight_decay"], optimizer.param_groups[0]["step"]) == (decay, 2)
    for old, state in zip(before, optimizer.state.values(), strict=True):
        assert torch.equal(state["exp_avg_sq"], old / 4)


def test_the_state_in_groups_stays_where_state_is_not_to_be_converted():
    optimizer = trained(FusedAdam(parameters()))
    rescale_(optimizer, 4, state=False)
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["step"]) == (2e-3, 8)


class Lamb(torch.optim.Optimizer):
    """timm's: groups without decay are Adam's."""

    def __init__(self, params):
        defaults = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01, "max_grad_norm": 1.0}
        super().__init__(params, {**defaults, "always_adapt": False, "step": 8})

    def step(self, closure=None): ...


def test_groups_of_lamb_without_decay_are_adams():
    one, two = parameters()
    optimizer = Lamb([{"params": [one]}, {"params": [two], "weight_decay": 0.0}])
    assert [row.name for row, _ in families_of(optimizer)] == ["lamb", "adam"]
    changes = rescale_(optimizer, 4)
    assert changes["lr (group 0)"].after == pytest.approx(1e-3 * 4**0.75)
    assert changes["lr (group 1)"].after == 2e-3
    assert [group["step"] for group in optimizer.param_groups] == [2, 2]


def test_a_class_of_a_known_name_without_the_keys_is_not_taken_for_it():
    class Lion(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 1e-3, "speed": 3.0})

        def step(self, closure=None): ...

    with pytest.raises(TypeError, match=r"got Lion\. .*The nearest family is"):
        rescale_(Lion(parameters()), 4)


def test_a_class_of_a_known_name_with_another_state_is_refused():
    class Lion(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 1e-3, "betas": (0.9, 0.99)})

        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                self.state[p]["momentum"] = p.grad.clone()

    with pytest.raises(ValueError, match="state has momentum, which lion has not"):
        rescale_(trained(Lion(parameters())), 4)


def test_every_library_class_is_a_row():
    for spelling in LIBRARIES:
        row = spelled(spelling, spelling.family)
        assert row.name == spelling.family
        assert set(row.torch.state.values()) <= set(row.state), spelling.names
        assert set(row.torch.codes) <= set(row.torch.state)
