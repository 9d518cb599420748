"""Forecasts of samples, hours and ramps, and the command that makes them."""

import json
import math
import sys

import pytest

from rootscale import AdamW, Plan, Schedule
from rootscale.cli import main
from rootscale.noise import Interval
from rootscale.planner import NoiseAlong, Seconds, make_forecast

PLAN = Plan(AdamW(1e-3, weight_decay=0.1), 64, steps=10_000, schedule=Schedule("cosine", warmup=500))
ONE = NoiseAlong((0.0,), (Interval(1024, 512, 2048),))
GROWING = NoiseAlong(
    (0.0, 160_000.0, 320_000.0, 480_000.0),
    (Interval(64, 50, 80), Interval(400, 300, 500), Interval(2000, 1100, 3000), Interval(9000, 5000, math.inf)),
)
WORDS = "plan --optimizer adamw --lr 1e-3 --batch-size 64 --steps 10000".split()


def test_samples_grow_with_the_batch_as_the_noise_scale_says():
    cost = ONE.cost(1024, 64)
    assert cost.value == pytest.approx(2 / (1 + 64 / 1024))
    assert cost.low == pytest.approx((1 + 1024 / 2048) / (1 + 64 / 2048))
    assert cost.high == pytest.approx((1 + 1024 / 512) / (1 + 64 / 512))
    same = ONE.cost(64, 64)
    assert (same.value, same.low, same.high) == (1, 1, 1)
    assert ONE.cost(16, 64).value < 1


def test_each_measurement_stands_for_the_part_of_the_run_around_it():
    along = NoiseAlong((0.0, 100.0), (Interval(10, 10, 10), Interval(1e12, 1e12, 1e12)))
    assert along.cost(20, 0, 100).value == pytest.approx(0.5 * 3 + 0.5)
    assert along.cost(20, 0, 200).value == pytest.approx(0.25 * 3 + 0.75)
    assert along.cost(20, 0, 40).value == pytest.approx(3)


def test_a_noise_scale_without_an_upper_end_leaves_the_forecast_open_below():
    cost = NoiseAlong((0.0,), (Interval(1000, 500, math.inf),)).cost(1000, 0)
    assert (cost.low, cost.value, cost.high) == (1, 2, 3)


@pytest.mark.parametrize(
    ("samples", "scale", "message"),
    [
        ((), (), "as many places of the run as measurements"),
        ((0.0, 0.0), (Interval(1, 1, 1),) * 2, "must increase"),
        ((0.0,), (Interval(math.inf, 1, math.inf),), "needs a finite value within its interval"),
        ((0.0,), (Interval(5, 6, 7),), "needs a finite value within its interval"),
    ],
)
def test_a_noise_scale_that_is_none_is_refused(samples, scale, message):
    with pytest.raises(ValueError, match=message):
        NoiseAlong(samples, scale)


def test_seconds_lie_on_lines_between_what_was_measured():
    seconds = Seconds({64: 1.0, 256: 1.6, 1024: 5.6})
    assert [seconds.at(size) for size in (32, 64, 160, 256, 640, 2048)] == pytest.approx(
        [1, 1, 1.3, 1.6, 3.6, 10.93333333]
    )
    assert [seconds.measured(size) for size in (32, 64, 1024, 2048)] == [False, True, True, False]
    with pytest.raises(ValueError, match=r"at two batch sizes or more, such as 256=0.41 1024=1.2; got 64=1.0"):
        Seconds({64: 1.0})
    with pytest.raises(ValueError, match="must take a time above 0"):
        Seconds({64: 1.0, 128: 0.0})


def test_a_forecast_has_steps_hours_and_the_numbers_to_train_with():
    forecast = make_forecast(PLAN, [256, 1024], ONE, Seconds({64: 0.36, 1024: 0.72}))
    sizes = [choice.size.total for choice in forecast.choices]
    assert sizes == [64, 256, 1024]
    now, _, large = forecast.choices
    assert (now.steps, large.steps) == (10_000, 625)
    assert now.hours == pytest.approx(1.0)
    assert large.hours == pytest.approx(625 * 0.72 / 3600)
    assert large.hours_to_loss.value == pytest.approx(large.hours * large.cost.value)
    assert large.conversion.plan == PLAN.at(1024)
    assert forecast.to_dict()["batch_sizes"][2]["plan"]["optimizer"]["eta"] == pytest.approx(4e-3)


def test_without_a_noise_scale_nothing_is_said_of_samples():
    (now, other) = make_forecast(PLAN, [256]).choices
    assert now.cost is other.cost is other.hours is other.hours_to_loss is None
    assert other.unknown == "no noise scale was given"
    unsure = NoiseAlong((0.0,), (Interval(1000, 0, math.inf),))
    (now, other) = make_forecast(PLAN, [256], unsure).choices
    assert now.cost.value == 1
    assert other.cost is None
    assert other.unknown == "the interval of the noise scale reaches 0"


def test_a_ramp_stays_below_half_of_the_lower_end():
    ramp = make_forecast(PLAN, [128, 256, 512, 1024, 2048], GROWING, Seconds({64: 1, 2048: 2})).ramp
    assert ramp.stages == ((0, 64), (160_000, 128), (320_000, 512), (480_000, 2048))
    assert ramp.steps == 160_000 // 64 + 160_000 // 128 + math.ceil(160_000 / 512) + math.ceil(160_000 / 2048)
    assert (
        1 < ramp.cost.low < ramp.cost.value < ramp.cost.high < make_forecast(PLAN, [2048], GROWING).choices[-1].cost.low
    )
    assert ramp.hours < make_forecast(PLAN, [128], GROWING, Seconds({64: 1, 2048: 2})).choices[0].hours


def test_where_there_is_no_ramp_it_says_why():
    assert "a log of it" in make_forecast(PLAN, [256], ONE).no_ramp
    low = NoiseAlong((0.0, 640_000.0), (Interval(90, 60, 100),) * 2)
    assert (
        "no batch size above 64 stays below half of the noise scale's lower end" in make_forecast(PLAN, (), low).no_ramp
    )
    above = NoiseAlong((0.0, 700_000.0), (Interval(900, 600, 1000),) * 2)
    with pytest.raises(ValueError, match="a ramp from there would lie above the data"):
        make_forecast(PLAN, (), above)
    with pytest.raises(ValueError, match="a batch of 1,000,000 samples is more than the whole run of 640,000"):
        make_forecast(PLAN, [1_000_000], ONE)
    with pytest.raises(ValueError, match="a forecast needs the length of the run"):
        make_forecast(Plan(AdamW(1e-3), 64), [128], ONE)


# -- the command


def test_the_command_prints_a_table_that_calls_itself_a_forecast(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    words = "--noise 1024 512 2048 --seconds 64=0.36 4M=0.72 --batch-sizes 256 4M --horizon".split()
    assert main([*WORDS, "--sequence-length", "4096", *words, "2M samples"]) == 0
    said = capsys.readouterr()
    out = said.out
    assert "Forecast for a run of adamw" in out
    assert "Nobody has run it" in out
    assert "256 = 1,048,576 tokens" in out
    assert "977 = 4,001,792 tokens" in out  # 4M counts tokens, and a batch has whole sequences
    assert "note: --batch-sizes 4M is 976.562 sequences, of which 977 are taken" in said.err
    for name in ("timescale", "power-lines", "nanochat", "marin", "completed-p"):
        assert name in out


def test_the_forecast_is_json_a_figure_and_a_plan(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    words = [
        "--noise",
        "1024",
        "512",
        "2048",
        "--batch-sizes",
        "256",
        "--choose",
        "512",
        "--png",
        str(tmp_path / "a.png"),
    ]
    assert main([*WORDS, *words, "--write", str(tmp_path / "plan.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["batch_size"] for row in found["batch_sizes"]] == [64, 256, 512]
    assert found["ramp"] is None
    assert "arXiv 1812.06162" in found["forecast"]
    plan = Plan.from_json((tmp_path / "plan.json").read_text())
    assert (plan.batch_size.total, plan.steps) == (512, 1250)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


CONFIG = """{"train_batch_size": 256, "optimizer": {"type": "AdamW", "params":
{"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}}}"""


def test_a_configuration_goes_in_and_comes_out(tmp_path, capsys):
    file = tmp_path / "ds.json"
    file.write_text(CONFIG)
    words = ["plan", "--config", str(file), "--tokens", "10B", "--sequence-length", "2048", "--noise", "4M", "3M", "5M"]
    assert main([*words, "--choose", "1024 samples", "--write", str(tmp_path / "new.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"]["batch_size"] == 256
    assert found["batch_sizes"][-1]["tokens"] == 1024 * 2048
    new = json.loads((tmp_path / "new.json").read_text())
    assert (new["train_batch_size"], new["optimizer"]["params"]["lr"]) == (1024, 6e-4)


def log(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_log_of_the_noise_scale_gives_a_ramp(tmp_path, capsys):
    points = [{"samples": 160_000 * i, "noise_scale": 500.0 * 4**i, "noise_scale_low": 300.0 * 4**i} for i in range(4)]
    for point in points[:3]:  # at the last there was no upper end: trackers leave out what is not finite
        point["noise_scale_high"] = 2 * point["noise_scale"]
    file = log(tmp_path / "run.jsonl", points)
    assert main([*WORDS, "--noise-log", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ramp"]["stages"] == [[0, 128], [160_000, 512], [320_000, 2048], [480_000, 4096]]


def test_seconds_are_measured_with_the_users_own_command_and_kept(tmp_path, capsys):
    program = tmp_path / "train.py"
    program.write_text(
        "import sys, time\nopen('count', 'a').write('x')\ntime.sleep(int(sys.argv[1]) * int(sys.argv[2]) * 1e-3)\n"
    )
    command = (
        f"{sys.executable} -S -c \"import os; os.chdir('{tmp_path}'); import sys; sys.argv[1:] = ['{{batch_size}}', "
    )
    command += "'{steps}']; exec(open('train.py').read())\""
    words = [*WORDS, "--time", command, "--time-at", "10", "40", "--time-steps", "20", "--out", str(tmp_path), "--json"]
    assert main([*words, "--batch-sizes", "256"]) == 0
    rows = json.loads(capsys.readouterr().out)["batch_sizes"]
    assert rows[0]["seconds_per_step"] == pytest.approx(0.064, rel=0.5)
    assert (tmp_path / "count").read_text() == "x" * 4
    assert main([*words, "--batch-sizes", "256"]) == 0
    assert (tmp_path / "count").read_text() == "x" * 4, "what was measured is not measured again"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--noise-scale 1000", "--noise-scale 1000 has no interval, and nothing is forecast from a number alone"),
        ("--noise 1000 2000 3000", "the noise scale needs a finite value within its interval"),
        ("--seconds 64=1", "seconds of a step are needed at two batch sizes or more"),
        ("--seconds 64 128", "--seconds takes B=SECONDS such as 256=0.41, got '64'"),
        ("--batch-sizes 1M", "a batch of 1,000,000 samples is more than the whole run of 640,000"),
        ("--time x --time-at 64", "--time needs two batch sizes or more"),
        ("--time x --time-at 64 128", "the command of --time must have {batch_size}"),
        ("--time-at 64 128", "--time-at does nothing without --time"),
        ("--choose 128", "--choose B and --write FILE belong together"),
        ("--horizon 40B", "must come with the length of a sequence"),
        ("--from 8", "--from is the batch size of a --config"),
    ],
)
def test_what_cannot_be_forecast_is_refused_in_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*WORDS, *words.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not any(path.suffix for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"samples": 0, "loss": 1.0}], "has no column noise_scale and noise_scale_low"),
        (
            [{"samples": 0, "noise_scale": 5.0}],
            "has no column noise_scale_low, and nothing is forecast from a noise scale",
        ),
        ([{"samples": 0, "noise_scale": 0.0, "noise_scale_low": 0.0}], "never measured with an interval: too few"),
    ],
)
def test_a_log_that_does_not_say_enough_is_refused(rows, message, tmp_path, capsys):
    file = log(tmp_path / "run.jsonl", [*rows, {"samples": 9, "loss": 1.0}])
    assert main([*WORDS, "--noise-log", file]) == 2
    assert message in capsys.readouterr().err
