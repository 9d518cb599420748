"""Sizes and lengths in samples and tokens, as people write them."""

import json
from fractions import Fraction

import pytest
import torch

from rootscale import AdamW, BatchSize, Plan, Schedule
from rootscale.cli import main
from rootscale.noise import Interval, Noise
from rootscale.sizes import read_amount, samples_of, show_samples, steps_of
from rootscale.tracking import above_noise, numbers
from rootscale.training import Run

TOKENS = Plan(AdamW(3e-4), "0.5M", steps="10B tokens", sequence_length=2000, intervals={"eval": "50M tokens"})


@pytest.mark.parametrize(
    ("text", "samples"),
    [
        ("256", 256),  # less than one sequence: no number of tokens
        ("0.5M", 250),
        ("2**19", Fraction(2**19, 2000)),
        ("4_000 tokens", 2),
        ("4M sequences", 4_000_000),
        ("8K samples", 8000),
        (4096, 4096),  # a number in Python counts samples, as everywhere
        ("512/3", Fraction(512, 3)),  # as a plan's JSON has it
    ],
)
def test_a_size_counts_samples_or_tokens_by_how_it_is_written(text, samples):
    assert samples_of("batch_size", text, 2000) == samples
    assert BatchSize.of(text, 2000).total == samples
    assert BatchSize.of(text, 2000).tokens == 2000 * samples


def test_letters_are_powers_of_1000_and_powers_are_read():
    assert [samples_of("b", text) for text in ("1.5K", "2M", "3B", "4T", "2**10", "2^10", "1e3", "512 * 2")] == [
        1500, 2_000_000, 3 * 10**9, 4 * 10**12, 1024, 1024, 1000, 1024,
    ]  # fmt: skip
    assert read_amount("1T tokens").number == 10**12


@pytest.mark.parametrize(
    ("text", "length", "message"),
    [
        ("5000", 2000, "must say its unit, as it may count samples or tokens .* write '5000 samples' or '5000 tokens'"),
        ("0.5M tokens", None, "must come with the length of a sequence where it counts tokens, got '0.5M tokens'"),
        ("10 steps", 2000, "must be a number of samples or tokens, got '10 steps'"),
        ("half", 2000, "must be a number above 0 such as 1024, got 'half'"),
        ("1e99", None, r"must be at most 2\^53"),
        ("-5 tokens", 2000, "must be a number above 0"),
    ],
)
def test_a_size_that_cannot_be_read_is_refused_with_what_to_write(text, length, message):
    with pytest.raises(ValueError, match=f"batch_size {message}"):
        BatchSize.of(text, length)


def test_lengths_in_tokens_and_samples_are_steps():
    assert steps_of("steps", "10B tokens", 250, 2000) == 20_000
    assert steps_of("steps", "5K samples", 250) == 20
    assert steps_of("steps", "20K", 250) == 20_000
    with pytest.raises(ValueError, match="warmup must come with the length of a sequence"):
        steps_of("warmup", "1M tokens", 250)


def test_a_plan_in_tokens_is_that_in_samples():
    same = Plan(AdamW(3e-4), 250, steps=20_000, sequence_length=2000, intervals={"eval": 100})
    assert same == TOKENS
    assert (TOKENS.tokens, TOKENS.samples) == (10**10, 5_000_000)
    assert Plan.from_json(TOKENS.to_json()) == TOKENS
    assert TOKENS.at("2M").tokens == TOKENS.tokens
    assert TOKENS.at("2M") == TOKENS.at(1000)
    assert Plan(AdamW(3e-4), 250, steps=20_000).tokens is None
    assert Plan(AdamW(3e-4), BatchSize.of("1M tokens", 2000)).sequence_length == 2000
    with pytest.raises(ValueError, match=r"sequence_length must be that of the batch size, 2,000, got 1,000"):
        Plan(AdamW(3e-4), BatchSize.of("1M tokens", 2000), sequence_length=1000)
    with pytest.raises(ValueError, match="steps must come with the length of a sequence"):
        Plan(AdamW(3e-4), 250, steps="10B tokens")
    with pytest.raises(ValueError, match="sequence_length must be a whole number"):
        Plan(AdamW(3e-4), 250, sequence_length=0.5)


def test_layouts_keep_their_sequence_length():
    size = BatchSize.of("32x4x8", 2048)
    assert (size.at("4M tokens").laid_out, size.at(2048).accumulation) == (False, 8)
    assert size.at(2048).tokens == 2048**2
    assert BatchSize.of(BatchSize.of("32x4x8"), 2048).laid_out
    assert not BatchSize.of(BatchSize(256), 2048).laid_out


def test_warm_ups_of_a_dictionary_may_count_tokens():
    data = TOKENS.to_dict() | {"schedule": {"name": "cosine", "warmup": "100M tokens"}}
    assert Plan.from_dict(data).schedule == Schedule("cosine", warmup=200)


def test_tables_show_samples_and_tokens():
    changes = TOKENS.convert("2M").changes
    assert changes.heading.startswith("batch size 250 = 500,000 tokens -> 1,000 = 2,000,000 tokens, kappa = 4")
    assert "5,000,000 samples = 10,000,000,000 tokens in both" in changes.heading
    noisy = Plan(AdamW(3e-4), "0.5M", steps=100, noise_scale="1M", sequence_length=2000).convert("2M")
    assert "batch size 1,000 = 2,000,000 tokens is beyond the noise scale 500 = 1,000,000 tokens" in noisy.warnings[0]
    assert show_samples(2, None) == "2"
    noise = Noise(*[Interval(1.0, 1.0, 1.0)] * 3, steps=5)
    assert "the batch of 4 samples (8,000 tokens) exceeds" in above_noise(noise, 4, 2000)


def test_the_command_line_takes_tokens(capsys):
    words = "scale --optimizer adamw --lr 3e-4 --batch-size 0.5M --sequence-length 2000 --to 2M --json".split()
    assert main([*words, "--tokens", "10B", "--warmup-steps", "100M tokens", "--every", "eval=50M tokens"]) == 0
    plan = Plan.from_dict(json.loads(capsys.readouterr().out)["from"])
    assert plan == Plan(
        AdamW(3e-4), 250, steps=20_000, schedule=Schedule(warmup=200), intervals={"eval": 100}, sequence_length=2000
    )
    assert main([*words, "--samples", "5M"]) == 0
    assert Plan.from_dict(json.loads(capsys.readouterr().out)["to"]).steps == 5000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--batch-size 256 --to 512 --tokens 1B", "--steps must come with the length of a sequence"),
        (
            "--batch-size 256 --to 512 --tokens 1B --steps 5",
            "give one length of the run, --steps or --tokens",
        ),
        ("--batch-size 1M --to 4096 --sequence-length 512", "--to must say its unit"),
        ("--batch-size 256 --to 512 --sequence-length 1.5", "--sequence-length must be a whole number of tokens"),
    ],
)
def test_options_that_say_no_number_of_samples_are_refused(words, message, capsys):
    assert main(["scale", "--optimizer", "adamw", "--lr", "3e-4", *words.split()]) == 2
    assert message in capsys.readouterr().err


def test_logs_that_count_steps_are_compared_by_batches_in_tokens(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, size in (("base", 4), ("large", 16)):
        rows = [f"{k},{1 / (k * size + 4)}" for k in range(1, 641 // size)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["step,loss", *rows, ""]))
    words = "compare base.csv --to large.csv --json".split()
    found = []
    for sizes in (
        ["4", "16"],
        ["8K", "32K", "--sequence-length", "2000"],
        ["8000 tokens", "16", "--sequence-length", "2K"],
    ):
        assert main([*words, "--batch-size", *sizes]) in (0, 1, 3)
        found.append(json.loads(capsys.readouterr().out)["others"])
    assert found[0] == found[1] == found[2]
    assert main([*words, "--batch-size", "8000 tokens", "16"]) == 2
    assert "--batch-size must come with the length of a sequence" in capsys.readouterr().err
    assert main([*words, "--sequence-length", "2K"]) == 2
    assert "--sequence-length does nothing without --batch-size" in capsys.readouterr().err


def test_a_run_takes_batch_sizes_in_tokens_and_counts_them():
    optimizer = torch.optim.AdamW([torch.ones(2, requires_grad=True)], lr=1e-3)
    run = Run(optimizer, tuned_at="0.5M tokens", batch_size="2M", sequence_length=2000)
    assert (run.tuned_at, run.batch_size, run.kappa, run.steps(8)) == (250, 1000, 4, 2)
    run.batch_size = "1M tokens"
    assert run.batch_size == 500
    optimizer.step()
    assert (run.samples, run.tokens) == (500, 1_000_000)
    assert numbers(run)["tokens_seen"] == 1_000_000
    assert Run(torch.optim.SGD([torch.ones(1)], 0.1), tuned_at=4).tokens is None
