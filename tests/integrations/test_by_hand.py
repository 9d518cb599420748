"""Runs under other libraries go on, converted, where a conversion by hand goes on; see by_hand.py."""

import pytest
import torch
from by_hand import (
    QUANTITIES,
    AdamByHand,
    assert_same,
    batches,
    convert,
    gap,
    loss_of,
    net,
    take_steps,
    take_steps_by_hand,
)
from torch import nn

KAPPA, FIRST, BEFORE, AFTER = 4, 4, 12, 6
SMALL, LARGE = batches(BEFORE, FIRST), batches(AFTER, FIRST * KAPPA, seed=1)
SETTINGS = AdamByHand([], 1e-2).arguments


def trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def by_hand(model, parameters=None, rates=(1e-2,), *, but=None, decay=None):
    """The end of a run of `BEFORE` steps at ``rates`` and, converted by hand, `AFTER` more; decay is a schedule."""
    parameters = parameters or [trainable(model)]
    hands = [AdamByHand(group, eta) for group, eta in zip(parameters, rates, strict=True)]
    decay = decay or (lambda tick: 1.0)
    take_steps_by_hand(model, hands, parameters, SMALL, [decay(k) for k in range(BEFORE)])
    hands = [hand.converted(KAPPA, but) for hand in hands]
    take_steps_by_hand(model, hands, parameters, LARGE, [decay(BEFORE + KAPPA * k) for k in range(AFTER)])
    return [p.detach() for p in trainable(model)]


# ---- torch itself, and what the oracle can see


def test_torchs_adamw_goes_on_as_by_hand():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), **SETTINGS)
    take_steps(model, optimizer, SMALL)
    convert(optimizer, KAPPA)
    take_steps(model, optimizer, LARGE)
    assert_same(model.parameters(), by_hand(net()))


@pytest.mark.parametrize("but", QUANTITIES)
def test_the_oracle_notices_a_quantity_that_is_not_converted(but):
    start = trainable(net())
    assert gap(by_hand(net(), but=but), by_hand(net()), start) > 1e-3


# ---- adapters: peft


def adapted():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["0", "2"], init_lora_weights=False)
    return peft.get_peft_model(net(), config).double()


def test_adapters_go_on_as_by_hand_and_the_weights_beneath_stay():
    model = adapted()
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.AdamW(trainable(model), **SETTINGS)
    take_steps(model, optimizer, SMALL)
    convert(optimizer, KAPPA)
    take_steps(model, optimizer, LARGE)
    assert len(trainable(model)) == len(frozen) == 4
    assert_same(trainable(model), by_hand(adapted()))
    assert all(torch.equal(p, frozen[name]) for name, p in model.named_parameters() if name in frozen)


def test_the_two_rates_of_lora_plus_are_converted_each():
    """LoRA+: the matrices B have 16 times the learning rate of the matrices A."""
    model, same = adapted(), adapted()
    make = pytest.importorskip("peft.optimizers").create_loraplus_optimizer
    settings = {**SETTINGS, "lr": 1e-3}
    decay = settings.pop("weight_decay")
    optimizer = make(model, torch.optim.AdamW, loraplus_lr_ratio=16, loraplus_weight_decay=decay, **settings)
    take_steps(model, optimizer, SMALL)
    convert(optimizer, KAPPA)
    take_steps(model, optimizer, LARGE)
    named = [(name, p) for name, p in same.named_parameters() if p.requires_grad]
    groups = [[p for name, p in named if f".lora_{letter}." in name] for letter in "AB"]
    assert_same(trainable(model), by_hand(same, groups, (1e-3, 16e-3)))


# ---- Accelerate alone


@pytest.fixture
def accelerator_of():
    """Make accelerators; the library keeps its state for the whole process."""
    accelerate = pytest.importorskip("accelerate", reason="needs the extra: pip install 'rootscale[accelerate]'")
    state = accelerate.state

    def make(**options):
        for one in (state.AcceleratorState, state.GradientState, state.PartialState):
            one._reset_state()
        return accelerate.Accelerator(cpu=True, **options)

    yield make
    for one in (state.AcceleratorState, state.GradientState, state.PartialState):
        one._reset_state()


def halving(tick):
    return 0.5 ** (tick / 16)


def test_a_saved_run_of_accelerate_goes_on_with_accumulation_as_by_hand(accelerator_of, tmp_path):
    """Steps of 4 are saved, and go on as steps of 4 micro-batches of 4, with the schedule of the first run."""
    for data, parts in ((SMALL, 1), (LARGE, KAPPA)):
        accelerator, model = accelerator_of(gradient_accumulation_steps=parts), net()
        optimizer = torch.optim.AdamW(model.parameters(), **SETTINGS)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, halving)
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
        if parts > 1:
            accelerator.load_state(tmp_path / "state")
            convert(optimizer.optimizer, KAPPA, scheduler=scheduler.scheduler)
        for batch in data:
            for micro in zip(*(values.chunk(parts) for values in batch), strict=True):
                with accelerator.accumulate(model):
                    accelerator.backward(loss_of(model, micro))
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
        accelerator.save_state(tmp_path / "state")
    assert_same(model.parameters(), by_hand(net(), decay=halving))


# ---- TRL


def sft(model, **options):
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    data = Dataset.from_list([{"input_ids": [i % 7, i % 5, (i + 2) % 7, i % 3, 1]} for i in range(64)])
    arguments = SFTConfig(max_length=8, **options.pop("arguments"))
    return SFTTrainer(model, arguments, train_dataset=data, processing_class=tokenizer(), **options)


def dpo(model, **options):
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    rows = [{"prompt": f"{i % 5}", "chosen": f"{(i + 1) % 7}{i % 3}", "rejected": f"{(i + 2) % 9}"} for i in range(64)]
    arguments = DPOConfig(max_length=8, **options.pop("arguments"))
    return DPOTrainer(
        model, gpt2(), arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer(), **options
    )


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(["<pad>", "<eos>", *"0123456789"])}
    digits = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    digits.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=digits, pad_token="<pad>", eos_token="<eos>")


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    size = dict(vocab_size=12, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1)
    return GPT2LMHeadModel(GPT2Config(**size)).double()


@pytest.mark.filterwarnings("ignore")  # TRL warns of much that is not ours
@pytest.mark.parametrize("trainer_of", [sft, dpo])
def test_trls_steps_go_on_as_by_hand(trainer_of, tmp_path, monkeypatch):
    """Its gradients are given to the steps by hand; the conversion is between two of its steps."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("trl")
    pytest.importorskip("datasets")
    from transformers import TrainerCallback

    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), **SETTINGS)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, halving)
    parameters = list(model.parameters())
    hand = AdamByHand(parameters, 1e-2)
    start = [p.detach().clone() for p in parameters]
    ticks = [*range(BEFORE), *(BEFORE + KAPPA * k for k in range(AFTER))]

    class Follow(TrainerCallback):
        def on_step_begin(self, args, state, control, **rest):
            nonlocal hand
            if state.global_step == BEFORE:
                convert(optimizer, KAPPA, scheduler=scheduler)
                hand = hand.converted(KAPPA)

        def on_pre_optimizer_step(self, args, state, control, **rest):
            hand.update([p.grad.clone() for p in parameters], halving(ticks[state.global_step]))

    arguments = dict(
        output_dir=str(tmp_path), per_device_train_batch_size=FIRST, max_steps=BEFORE + AFTER, max_grad_norm=0.0,
        gradient_checkpointing=False, use_cpu=True, bf16=False, dataloader_pin_memory=False, report_to=[],
        disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    trainer = trainer_of(model, arguments=arguments, optimizers=(optimizer, scheduler), callbacks=[Follow()])
    trainer.train()
    assert hand.step == BEFORE / KAPPA + AFTER
    assert gap(parameters, start, hand.theta) > 0.5, "it has gone somewhere"
    assert_same(parameters, hand.theta)


# ---- states in 8 bits, and paged: bitsandbytes


def made_by(name, *shapes, **settings):
    """An optimizer of bitsandbytes over random parameters in float32, after some steps."""
    module = pytest.importorskip("bitsandbytes")
    module.optim.GlobalOptimManager.get_instance().initialize()
    parameters = [nn.Parameter(p) for p in random_parameters(shapes)]
    optimizer = getattr(module.optim, name)(parameters, **settings)
    for seed in range(BEFORE):
        for p, g in zip(parameters, random_gradients(shapes, seed), strict=True):
            p.grad = g
        optimizer.step()
    return optimizer, parameters


def random_parameters(shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def random_gradients(shapes, seed):
    generator = torch.Generator().manual_seed(100 + seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def average(state, number):
    """An average of bitsandbytes in float64: itself, or codes of a table times the scale of each block of 256."""
    values = state[f"state{number}"]
    if values.dtype != torch.uint8:
        return values.double()
    table, scales = state[f"qmap{number}"].double(), state[f"absmax{number}"].double()
    return table[values.long()] * scales.repeat_interleave(256)[: values.numel()].view(values.shape)


EIGHT_BITS = ("Adam8bit", "AdamW8bit", "PagedAdam8bit", "PagedAdamW8bit")
WHOLE = ("Adam32bit", "AdamW32bit", "PagedAdam32bit", "PagedAdamW32bit")


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("name", [*EIGHT_BITS, *WHOLE])
def test_the_step_after_a_conversion_is_that_of_the_averages_that_the_codes_stand_for(name):
    """In 8 bits a matrix has codes and a vector floats; of a paged optimizer, CPUs have the arithmetic alone."""
    shapes = [(80, 64), (16,)]
    optimizer, parameters = made_by(name, *shapes, **SETTINGS)
    states = [optimizer.state[p] for p in parameters]
    assert [state["state1"].dtype for state in states] == [
        torch.uint8 if name in EIGHT_BITS else torch.float32,
        torch.float32,
    ]
    start = [p.detach().double() for p in parameters]
    hand = AdamByHand(start, 1e-2, step=BEFORE, m=[average(s, 1) for s in states], v=[average(s, 2) for s in states])
    wrong = hand.converted(KAPPA, but="v")
    hand = hand.converted(KAPPA)
    convert(optimizer, KAPPA)
    g = random_gradients(shapes, BEFORE)
    for p, one in zip(parameters, g, strict=True):
        p.grad = one
    optimizer.step()
    for one in (hand, wrong):
        one.update([one.double() for one in g])
    assert gap([p.double() for p in parameters], hand.theta, start) < 1e-4
    assert gap([p.double() for p in parameters], wrong.theta, start) > 0.1


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("name", ["AdamW8bit", "PagedAdamW8bit"])
def test_many_steps_in_8_bits_stay_within_the_rounding_of_8_bits(name):
    """A run by hand without codes: as near after the conversion as before it."""
    shapes = [(80, 64)]
    optimizer, parameters = made_by(name, *shapes, **SETTINGS)
    start = random_parameters(shapes)
    hand = AdamByHand([p.double() for p in start], 1e-2)
    for seed in range(BEFORE):
        hand.update([g.double() for g in random_gradients(shapes, seed)])
    before = gap([p.double() for p in parameters], hand.theta, start)
    convert(optimizer, KAPPA)
    hand = hand.converted(KAPPA)
    for seed in range(BEFORE, BEFORE + AFTER):
        parameters[0].grad = random_gradients(shapes, seed)[0] / KAPPA**0.5  # the noise of four times the batch
        optimizer.step()
        hand.update([parameters[0].grad.double()])
    after = gap([p.double() for p in parameters], hand.theta, start)
    assert after < before < 0.05
