"""Logs as the tools write them: by the real ones where they are installed, else in their exact layout."""

import csv
import json
import logging
import math
import shutil
import sqlite3

import numpy as np
import pytest
import torch

from rootscale.compare import FORMATS, Alignment, align, compare, read_logs
from rootscale.trajectory import Trajectory


def loss(step):
    return 1 + 2 * math.exp(-step / 20)


def values(log, name):
    return log.columns[name].values.tolist()


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# -- JSON


def test_json_lines_are_read_with_text_and_nested_rows(tmp_path):
    rows = [{"samples": 8, "train": {"loss": 2.0}, "note": "a"}, {"samples": 16, "train": {"loss": "NaN"}, "ok": True}]
    (log,) = read_logs(write_lines(tmp_path / "a.jsonl", rows))
    assert set(log.columns) == {"samples", "train/loss"}
    assert values(log, "train/loss")[0] == 2.0
    assert math.isnan(values(log, "train/loss")[1])


def test_a_line_that_is_cut_off_is_left_out_at_the_end_and_refused_elsewhere(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"samples": 8, "loss": 2.0}] * 2)
    whole = path.read_text()
    path.write_text(whole + '{"samples": 24, "lo')
    (log,) = read_logs(path)
    assert log.notes == ("its last line is cut off and was left out",)
    path.write_text('{"samples": 24, "lo\n' + whole)
    with pytest.raises(ValueError, match=r'a.jsonl, line 1: expected JSON such as {"samples": 1000, "loss": 0.9}'):
        read_logs(path)
    path.write_text("[1, 2]\n")
    with pytest.raises(ValueError, match=r"line 1: expected an object such as .* got \[1, 2\]"):
        read_logs(path)


def test_json_may_be_rows_columns_or_lines(tmp_path):
    path = tmp_path / "a.json"
    for text in ('[{"samples": 1, "loss": 2}, {"samples": 2, "loss": 1}]', '{"samples": [1, 2], "loss": [2, 1]}',
                 '{"samples": 1, "loss": 2}\n{"samples": 2, "loss": 1}\n'):  # fmt: skip
        path.write_text(text)
        (log,) = read_logs(path)
        assert values(log, "loss") == [2.0, 1.0]
    path.write_text('{"a": 1}')
    with pytest.raises(ValueError, match="must hold a list of rows"):
        read_logs(path)


def test_a_history_of_wandb_is_read(tmp_path):
    """Rows as `run.scan_history()` and `wandb-history.jsonl` have them."""
    rows = [
        {
            "_step": step,
            "_runtime": 0.5 * step,
            "_timestamp": 1.7e9 + step,
            "train/loss": loss(step),
            "epoch": step / 10,
        }
        for step in range(40)
    ]
    rows[39]["train/loss"] = "NaN"
    (log,) = read_logs(write_lines(tmp_path / "wandb-history.jsonl", rows))
    (whole,) = read_logs(write_lines(tmp_path / "whole.jsonl", [*rows[:39], {**rows[39], "train/loss": 1.2}]))
    found = align([[whole], [log]], Alignment(batch_sizes=(16, 16)))
    assert found.trajectories[0].names == ("train/loss",)
    assert found.trajectories[1].diverged.tolist() == [0] * 39 + [1]


# -- long files, in blocks

JSON_LINES = {
    "numbers": '{"samples": 1, "loss": 0.1234567890123456789}\n{"samples": 2, "loss": 5e-324}\n',
    "a column that begins late": '{"samples": 1}\n' * 30 + '{"samples": 2, "eval": 3}\n{"samples": 3, "loss": 1}\n',
    "null": '{"samples": 1, "loss": null}\n{"samples": 2, "loss": 3}\n',
    "not finite": '{"samples": 1, "loss": NaN}\n{"samples": 2, "loss": -Infinity}\n{"samples": 3, "loss": "inf"}\n',
    "text": '{"samples": 1, "loss": "n/a", "split": "a"}\n{"samples": 2, "loss": "3", "split": "b"}\n',
    "true": '{"samples": 1, "ok": true}\n{"samples": 2, "ok": 1}\n',
    "a key twice": '{"samples": 1, "loss": 2, "loss": 3}\n',
    "rows in rows": '{"samples": 1, "train": {"loss": 2}}\n{"samples": 2, "train": {"loss": 1}}\n',
    "large": '{"samples": 123456789012345678901234567890, "loss": 1e400}\n{"samples": 1, "loss": 9007199254740993}\n',
    "blank lines": '{"samples": 1}\n\n{"samples": 2}\r\n   \n{"samples": 3}',
    "cut off": '{"samples": 1}\n{"samples": 2}\n{"samp',
    "a quote in a key": '{"samples": 1, "a\\"b": 2}\n{"samples": 2, "a\\"b": 1}\n',
}
TABLES = {
    "numbers": "samples,loss\n1,0.1234567890123456789\n2,5e-324\n",
    "empty cells": "samples,loss,eval\n1,,\n2,3,\n3,,1\n",
    "not finite": "samples,loss\n1,nan\n2,-inf\n3,NaN\n4,1e400\n",
    "text": "samples,loss,split\n1,n/a,a\n2,3,b\n",
    "short and long rows": "samples,loss,eval\n1,2\n2,3,4,5\n3,4,5\n",
    "quoted": 'samples,"the ""loss""",loss\n"1","2",3\n2,"3\n",4\n',
    "blank lines": "samples,loss\n1,2\n\n2,3\r\n3,4",
    "underscores and spaces": "samples,loss\n1_000, 2\n2_000,3 \n",
    "a name twice": "samples,loss,loss\n1,2,3\n",
}


@pytest.fixture
def pieces(monkeypatch):
    """Every file is long, and its blocks are of a few lines. No public name sets the size of a block."""
    from rootscale.compare.readers import text

    def cut(block, library):
        monkeypatch.setattr(text, "BLOCK", block)
        monkeypatch.setattr(text, "LONG", 0)
        if not library:
            monkeypatch.setattr(text, "_polars", lambda: None)

    return cut


def contents(path):
    (log,) = read_logs(path)
    return {name: (column.rows.tolist(), list(map(repr, column.values.tolist()))) for name, column in
            log.columns.items()}, log.notes  # fmt: skip


@pytest.mark.parametrize("library", [False, True], ids=["python", "polars"])
@pytest.mark.parametrize(
    ("end", "text"),
    [("jsonl", text) for text in JSON_LINES.values()] + [("csv", text) for text in TABLES.values()],
    ids=[f"jsonl, {name}" for name in JSON_LINES] + [f"csv, {name}" for name in TABLES],
)
def test_a_long_file_reads_as_a_short_one_in_blocks_and_by_polars(tmp_path, pieces, end, text, library):
    if library:
        pytest.importorskip("polars")
    (tmp_path / f"a.{end}").write_text(text, newline="")
    whole = contents(tmp_path / f"a.{end}")
    for block in (1, 40, 1 << 20):
        pieces(block, library)
        assert contents(tmp_path / f"a.{end}") == whole


def test_polars_is_asked_for_long_files_of_numbers_alone(tmp_path, pieces, monkeypatch):
    polars = pytest.importorskip("polars")
    asked = []
    for name in ("read_ndjson", "read_csv"):
        function = getattr(polars, name)
        monkeypatch.setattr(polars, name, lambda *a, f=function, **k: asked.append(1) or f(*a, **k))
    path = write_lines(tmp_path / "a.jsonl", [{"samples": k, "loss": loss(k)} for k in range(100)])
    (tmp_path / "a.csv").write_text("samples,loss\n" + "".join(f"{k},{loss(k)}\n" for k in range(100)))
    read_logs(tmp_path)
    assert not asked
    pieces(1000, True)
    for log in read_logs(tmp_path):
        assert values(log, "loss") == [loss(k) for k in range(100)]
    assert len(asked) >= 6
    asked.clear()
    write_lines(path, [{"samples": k, "note": "a"} for k in range(100)])
    read_logs(path)
    assert len(asked) == 2, "after two blocks with texts it is not asked again"


def test_the_line_of_a_mistake_is_that_of_the_file(tmp_path, pieces):
    pieces(100, False)
    path = write_lines(tmp_path / "a.jsonl", [{"samples": k} for k in range(50)])
    path.write_text(path.read_text() + "[1]\n")
    with pytest.raises(ValueError, match=r"a\.jsonl, line 51: expected an object"):
        read_logs(path)


# -- transformers


def test_the_log_of_a_trainer_is_read_with_its_means_in_the_middle(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(3, 1)

        def forward(self, x, labels):
            found = self.line(x).squeeze(-1)
            return {"loss": (found - labels).square().mean(), "logits": found}

    x = torch.randn(64, 3)
    data = [{"x": row, "labels": row.sum()} for row in x]
    arguments = transformers.TrainingArguments(
        str(tmp_path / "run"), per_device_train_batch_size=4, num_train_epochs=2, logging_steps=4,
        eval_strategy="steps", eval_steps=8, save_steps=16, use_cpu=True, report_to=[], disable_tqdm=True,
        dataloader_pin_memory=False,
        learning_rate=0.05,
    )  # fmt: skip
    trainer = transformers.Trainer(Net(), arguments, train_dataset=data, eval_dataset=data)
    trainer.train()
    (log,) = read_logs(tmp_path / "run")  # the latest of its checkpoints
    assert log.name.endswith("checkpoint-32/trainer_state.json")
    history = trainer.state.log_history
    assert values(log, "loss") == [row["loss"] for row in history if "loss" in row]
    assert values(log, "eval_loss") == [row["eval_loss"] for row in history if "eval_loss" in row]
    assert "train_loss" not in log.columns
    found = align([[log], [log]], Alignment(["loss"], batch_sizes=(4, 4)))
    assert found.trajectories[0].times.tolist() == [16 * i + 8 for i in range(8)]
    assert align([[log], [log]]).unit == "epochs"
    trainer.save_state()
    (kept,) = read_logs(tmp_path / "run" / "trainer_state.json")
    assert values(kept, "loss") == values(log, "loss")
    (tmp_path / "run" / "trainer_state.json").write_text("{}")
    with pytest.raises(ValueError, match="no state of a Trainer with a log_history"):
        read_logs(tmp_path / "run")


# -- tables


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*")
def test_the_csv_of_lightning_is_read_with_its_batch_size(tmp_path):
    pytest.importorskip("lightning")
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers import CSVLogger

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Net(LightningModule):
        def __init__(self, batch_size):
            super().__init__()
            self.save_hyperparameters()
            self.line = torch.nn.Linear(3, 1)

        def training_step(self, batch, number):
            found = (self.line(batch[0]).squeeze() - batch[0].sum(1)).square().mean()
            self.log("train_loss", found)
            return found

        def validation_step(self, batch, number):
            self.log("val_loss", (self.line(batch[0]).squeeze() - batch[0].sum(1)).square().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 0.05)

    torch.manual_seed(0)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 3)), 4)
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", logger=CSVLogger(tmp_path), log_every_n_steps=2, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(Net(4), data, data)
    folder = tmp_path / "lightning_logs" / "version_0"
    (log,) = read_logs(folder)
    assert log.batch_size == 4
    assert len(log.columns["train_loss"]) == 16
    assert len(log.columns["val_loss"]) == 2
    found = align([[log], [log]], Alignment(["train_loss"]))
    assert found.unit == "samples"
    assert found.trajectories[0].times[-1] <= 4 * 32
    shutil.copytree(folder, tmp_path / "both" / "a")
    shutil.copytree(folder, tmp_path / "both" / "b")
    assert len(read_logs(tmp_path / "both")) == 2


def test_the_export_of_a_wandb_chart_has_a_run_in_each_column(tmp_path):
    path = tmp_path / "wandb_export.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        runs = ("seed-0", "a - b")
        writer.writerow(["Step", *(f"{run} - train/loss{end}" for run in runs for end in ("", "__MIN", "__MAX"))])
        for step in range(5):
            writer.writerow([step, *[loss(step)] * 3, *([2 * loss(step)] * 3 if step % 2 else [""] * 3)])
    first, second = read_logs(path)
    assert [first.name, second.name] == [f"{path} (seed-0)", f"{path} (a - b)"]
    assert values(first, "train/loss") == [loss(step) for step in range(5)]
    assert values(second, "train/loss") == [2 * loss(1), 2 * loss(3)]
    assert second.columns["Step"].values.tolist() == [1, 3]


def test_the_download_of_an_mlflow_chart_has_a_row_for_each_value(tmp_path):
    path = tmp_path / "metrics.csv"
    lines = ["run_id,key,value,step,timestamp"]
    lines += [f"{run},{key},{loss(step)},{step},{step}" for run in "ab" for key in ("loss", "acc") for step in range(5)]
    path.write_text("\n".join(lines) + "\n")
    first, second = read_logs(path)
    assert values(first, "loss") == values(second, "acc") == [loss(step) for step in range(5)]
    (tmp_path / "runs.csv").write_text("run_id,loss\na,1\nb,2\n")
    with pytest.raises(ValueError, match="one row for each run: the last values alone; export the history"):
        read_logs(tmp_path / "runs.csv")


def test_plain_tables_may_have_tabs_semicolons_and_a_mark_of_their_bytes(tmp_path):
    for mark, end in ((",", "csv"), (";", "csv"), ("\t", "tsv")):
        path = tmp_path / f"a.{end}"
        path.write_text("\ufeff" + f"samples{mark} loss\n1{mark}2\n2{mark}\n3{mark}nan\n", encoding="utf-8")
        (log,) = read_logs(path)
        assert len(log.columns["loss"]) == 2
        assert math.isnan(values(log, "loss")[1])
    path.write_text("1\t2\n2\t3\n")
    with pytest.raises(
        ValueError, match="no names of columns in its first line, such as samples,loss; it begins: 1\t2"
    ):
        read_logs(path)
    path.write_text("")
    with pytest.raises(ValueError, match="is empty; expected a first line"):
        read_logs(path)


# -- TensorBoard


def test_event_files_are_read_as_tensorboard_writes_them(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(tmp_path / "run")) as writer:
        for step in range(30):
            writer.add_scalar("train/loss", loss(step), step)
            writer.add_scalar("lr", 1e-3, step)
            writer.add_scalar("tensor", loss(step), step, new_style=True)
        writer.add_text("note", "hello", 3)
        writer.add_histogram("weights", np.arange(10.0), 3)
        writer.add_scalar("train/loss", math.nan, 30)
    (log,) = read_logs(tmp_path / "run")
    np.testing.assert_allclose(values(log, "train/loss")[:30], [loss(step) for step in range(30)], rtol=1e-6)
    np.testing.assert_allclose(values(log, "tensor"), [loss(step) for step in range(30)], rtol=1e-6)
    assert values(log, "step") == list(range(31))
    assert math.isnan(values(log, "train/loss")[30])
    assert set(log.columns) == {"step", "train/loss", "lr", "tensor"}
    (file,) = (tmp_path / "run").iterdir()
    raw = file.read_bytes()
    file.write_bytes(raw[:-5])
    (cut,) = read_logs(file)
    assert cut.notes == ("its last event is cut off and was left out",)
    assert len(cut.columns["train/loss"]) == 30
    file.write_bytes(raw[:100] + b"xxxx" + raw[104:])
    with pytest.raises(ValueError, match=r"damaged"):
        read_logs(file)


def test_the_files_of_a_resumed_run_are_joined_and_the_later_one_counts(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    for number, (start, shift) in enumerate(((0, 9.0), (10, 0.0))):
        with tensorboard.SummaryWriter(str(tmp_path), filename_suffix=f".{number}") as writer:
            for step in range(start, 20):
                writer.add_scalar("loss", loss(step) + shift * (step >= 10), step)
    (log,) = read_logs(tmp_path)
    found = align([[log], [log]], Alignment(batch_sizes=(4, 4)))
    np.testing.assert_allclose(found.trajectories[0].values["loss"][0], [loss(step) for step in range(20)], rtol=1e-6)
    assert any("resumed 1 time; of loss, 10 values" in note for note in found.notes)


# -- MLflow, Parquet, our own


def mlflow_run(folder, step_loss=loss):
    for name in ("metrics/train", "params"):
        (folder / name).mkdir(parents=True)
    (folder / "meta.yaml").write_text("run_id: a\nstatus: 3\n")
    (folder / "params" / "batch_size").write_text("16")
    (folder / "metrics" / "train" / "loss").write_text(
        "".join(f"{1_700_000_000_000 + step} {step_loss(step)} {step}\n" for step in range(30))
    )
    (folder / "metrics" / "acc").write_text("1700000000004 0.5 4\n")
    return folder


def test_a_run_in_the_file_store_of_mlflow_is_read_with_its_batch_size(tmp_path):
    (log,) = read_logs(mlflow_run(tmp_path / "0" / "abc"))
    assert log.batch_size == 16
    assert values(log, "train/loss") == [loss(step) for step in range(30)]
    assert align([[log], [log]]).trajectories[0].times[-1] == 16 * 29
    mlflow_run(tmp_path / "0" / "def")
    (tmp_path / "0" / "meta.yaml").write_text("name: Default\n")
    assert len(read_logs(tmp_path / "0")) == 2
    (tmp_path / "0" / "abc" / "metrics" / "acc").write_text("what\n")
    with pytest.raises(ValueError, match="acc, line 1: expected timestamp, value and step, got 'what'"):
        read_logs(tmp_path / "0" / "abc")


@pytest.fixture
def database(tmp_path):
    """The tables of MLflow's database from which runs are read, with more columns in the true ones."""
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE runs (run_uuid TEXT, name TEXT, lifecycle_stage TEXT, start_time INTEGER)")
        made.execute(
            "CREATE TABLE metrics (key TEXT, value REAL, timestamp INTEGER, run_uuid TEXT, step INTEGER, is_nan INT)"
        )
        made.execute("CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT)")
        for number, (name, stage) in enumerate((("base-0", "active"), ("base-1", "active"), ("old", "deleted"))):
            made.execute("INSERT INTO runs VALUES (?, ?, ?, ?)", (f"id{number}", name, stage, number))
            made.execute("INSERT INTO params VALUES ('batch_size', '16', ?)", (f"id{number}",))
            rows = [("loss", loss(step), step, f"id{number}", step, step == 29) for step in range(30)]
            made.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
    made.close()
    return path


def test_runs_in_the_database_of_mlflow_are_read_by_their_names(database):
    assert [log.name for log in read_logs(database)] == [f"{database}/base-0", f"{database}/base-1"]
    (log,) = read_logs(f"{database}/*-1")
    assert log.batch_size == 16
    assert values(log, "loss")[:29] == [loss(step) for step in range(29)]
    assert math.isnan(values(log, "loss")[29])
    with pytest.raises(ValueError, match="has no run 'old'; its runs are base-0, base-1"):
        read_logs(f"{database}/old")
    database.write_bytes(b"what")
    with pytest.raises(ValueError, match="is no database of MLflow that can be read"):
        read_logs(database)


def test_mlflow_itself_writes_that_layout(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with mlflow.start_run() as run:
        mlflow.log_param("batch_size", 16)
        for step in range(30):
            mlflow.log_metric("train/loss", loss(step), step=step)
    (log,) = read_logs(tmp_path / "mlruns" / run.info.experiment_id)
    assert log.batch_size == 16
    assert values(log, "train/loss") == [loss(step) for step in range(30)]


def test_parquet_is_read_by_what_is_installed(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"samples": [1, 2, 3], "loss": [3.0, None, 1.0], "text": ["a", "b", "c"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    (log,) = read_logs(tmp_path / "a.parquet")
    assert values(log, "loss") == [3.0, 1.0]
    table = pyarrow.table({"run_id": ["a", "a", "b", "b"], "samples": [1, 2, 1, 2], "loss": [3.0, 2.0, 1.0, 0.5]})
    parquet.write_table(table, tmp_path / "b.parquet")
    assert [values(log, "loss") for log in read_logs(tmp_path / "b.parquet")] == [[3.0, 2.0], [1.0, 0.5]]


def test_parquet_without_a_library_says_what_to_install(tmp_path, monkeypatch):
    import importlib

    def missing(name, *rest):
        raise ImportError(name)

    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ValueError, match="needs pyarrow, polars or pandas; pip install pyarrow, or save it as CSV"):
        read_logs(tmp_path / "a.parquet")


def test_runs_of_our_own_are_read_with_their_seeds(tmp_path):
    samples = [0, 100, 200]
    made = Trajectory(
        [0.0, 1.0, 2.0], {"train loss": np.arange(6.0).reshape(2, 3)}, meta={"samples": samples, "seeds": [4, 7]}
    )
    made.save(tmp_path / "trajectory.npz")
    for path in (tmp_path, tmp_path / "trajectory.npz"):
        logs = read_logs(path)
        assert [log.seed for log in logs] == [4, 7]
        assert values(logs[1], "train loss") == [3.0, 4.0, 5.0]
    found = compare(logs, logs)
    assert found.others[0].comparison.paired
    (tmp_path / "trajectory.npz").unlink()
    (tmp_path / "table.npz").write_text("{}")
    with pytest.raises(ValueError, match="is a whole check: `rootscale report"):
        read_logs(tmp_path)


# -- what is not there


def test_texts_of_other_programs_are_read_or_refused_by_name(tmp_path):
    marked, wide, packed = (tmp_path / name for name in ("marked.jsonl", "wide.csv", "a.jsonl.gz"))
    marked.write_text('{"samples": 1, "loss": 2}\n', encoding="utf-8-sig")
    assert values(read_logs(marked)[0], "loss") == [2.0]
    wide.write_text("samples,loss\n1,2\n", encoding="utf-16")
    with pytest.raises(ValueError, match=r"wide\.csv must be text in UTF-8"):
        read_logs(wide)
    packed.write_bytes(b"")
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz is packed; unpack it"):
        read_logs(packed)


def test_paths_that_hold_no_log_are_refused_with_the_formats_there_are(tmp_path):
    with pytest.raises(ValueError, match="there is no file or folder"):
        read_logs(tmp_path / "none")
    with pytest.raises(ValueError, match="no file matches"):
        read_logs(str(tmp_path / "*.jsonl"))
    (tmp_path / "a.txt").write_text("loss 3\n")
    with pytest.raises(ValueError, match="is no log that is known") as error:
        read_logs(tmp_path / "a.txt")
    assert all(row.layout in str(error.value) for row in FORMATS)
    write_lines(tmp_path / "b.jsonl", [{"note": "a"}])
    with pytest.raises(ValueError, match="has no numbers in it"):
        read_logs(str(tmp_path / "*.jsonl"))


# -- what scripts print

NANOGPT = """\
tokens per iteration will be: 16,384
found vocab_size = 65 (inside data/shakespeare_char/meta.pkl)
number of parameters: 10.65M
num decayed parameter tensors: 26, with 10,740,096 parameters
step 0: train loss 4.2874, val loss 4.2823
iter 0: loss 4.2654, time 31225.51ms, mfu -100.00%
iter 10: loss 3.1462, time 27.73ms, mfu 13.44%
step 20: train loss 2.4976, val loss 2.5075
saving checkpoint to out-shakespeare-char
iter 20: loss 2.7306, time 5038.44ms, mfu 12.10%
iter 30: loss nan, time 27.73ms, mfu 13.44%
"""


def test_what_nanogpt_prints_is_a_log_on_tokens(tmp_path):
    (tmp_path / "out.log").write_text(NANOGPT)
    (log,) = read_logs(tmp_path / "out.log")
    assert {name: values(log, name)[:3] for name in log.columns} == {
        "step": [0.0, 0.0, 10.0], "train loss": [4.2874, 2.4976], "val loss": [4.2823, 2.5075],
        "loss": [4.2654, 3.1462, 2.7306], "tokens": [0.0, 0.0, 163840.0],
    }  # fmt: skip
    assert math.isnan(values(log, "loss")[3])
    found = align([[log], [log]], Alignment(["val loss"], window=0))
    assert (found.unit, found.trajectories[0].times.tolist()) == ("tokens", [0.0, 20 * 16384])
    (tmp_path / "out.log").write_text(NANOGPT.partition("\n")[2])
    (log,) = read_logs(tmp_path / "out.log")
    assert align([[log], [log]], Alignment(["val loss"], batch_sizes=(12, 12))).trajectories[0].times[-1] == 240
    with pytest.raises(ValueError, match="has steps but no batch size"):
        align([[log], [log]])


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("step:125/5960 val_loss:5.2 train_time:11ms step_avg:88.2ms", {"step": 125, "val_loss": 5.2}),
        ("Epoch 3 | loss = 0.4 | acc: 0.91", {"Epoch": 3, "loss": 0.4, "acc": 0.91}),
        ("[step 2,000] loss=1e-3 lr=3.0e-04", {"step": 2000, "loss": 1e-3, "lr": 3e-4}),
        ("samples 4096, loss -.5.", {"samples": 4096, "loss": -0.5}),
        ("iter 5 step 7 loss 3.0", {"step": 5, "loss": 3.0}),
    ],
)
def test_lines_of_other_scripts_are_rows(line, row, tmp_path):
    (tmp_path / "a.txt").write_text(f"starting\n{line}\n")
    (log,) = read_logs(tmp_path / "a.txt")
    assert {name: values(log, name)[0] for name in log.columns} == row


def test_texts_that_are_no_logs_are_not_read_and_printed_ones_give_way_to_others(tmp_path):
    for text in ("loss 3\n", "lr = 3\nstep 5\n", "numpy==2.0\n", "see step 3 of the page\n"):
        (tmp_path / "a.txt").write_text(text)
        with pytest.raises(ValueError, match="is no log that is known"):
            read_logs(tmp_path / "a.txt")
    (tmp_path / "output.txt").write_text("step 1 loss 2.0\nstep 2 loss 1.0\n")
    assert [log.name for log in read_logs(tmp_path)] == [str(tmp_path / "output.txt")]
    write_lines(tmp_path / "log.jsonl", [{"samples": 1, "loss": 2.0}])
    assert [log.name for log in read_logs(tmp_path)] == [str(tmp_path / "log.jsonl")]
