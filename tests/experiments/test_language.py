import lzma
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from glue_data import GLUE, Point, Score, encode_texts, fine_tuning, read_glue
from language_models import (
    GPTS,
    Training,
    encoder_net,
    gpt,
    gpt_net,
    hash_uniforms,
    hide,
    micro_batch,
    recipe_plan,
    roberta,
    roberta_net,
    token_loss,
)  # fmt: skip
from swept import sweep
from text import Tokens, Vocabulary, Windows, chain, from_text, windows

from rootscale.lab import Here, Measure, Settings, Setup, Store, Tensors, Trial, Variant
from rootscale.lab.fingerprint import Fingerprints, differences

pytest.importorskip("transformers")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Nets this small are slower on more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def words():
    return from_text(chain(20, 6000))


def tiny(words, **changes):
    return made(gpt, words, {"model": "gpt-tiny", "length": 16}, {"epochs": 1, "batch_size": 4, "eta": 5e-2}, changes)


def made(make, words, options, training, changes):
    """A task with some of its options, or of its training, changed."""
    training = {**training, **{name: value for name, value in changes.items() if hasattr(Training, name)}}
    options = {**options, **{name: value for name, value in changes.items() if not hasattr(Training, name)}}
    return make(words, **options, training=Training(**training))


# -- data ------------------------------------------------------------------------------------------------------------


def test_windows_are_pieces_of_the_text_and_their_targets_lie_one_ahead():
    data = Windows(torch.arange(100, dtype=torch.uint8), torch.tensor([5, 50]), 8)
    x, y = data[torch.tensor([[1, 0], [0, 1]])]
    assert x.shape == y.shape == (2, 2, 8)
    assert x.dtype == torch.int64
    assert x[0, 0].tolist() == list(range(50, 58))
    assert torch.equal(y, x + 1)
    x, y = Windows(torch.arange(100), torch.tensor([92]), 8, ahead=0)[torch.tensor([0])]
    assert torch.equal(x, y)


def test_the_papers_split_is_nine_to_one_without_overlap_and_always_the_same(words):
    train, test = windows(words, 16)
    assert len(train) == int(0.9 * (len(train) + len(test)))
    starts = torch.cat([train.starts, test.starts])
    assert torch.equal(starts.sort().values, torch.arange(0, 16 * len(starts), 16))
    assert torch.equal(train.starts, windows(words, 16)[0].starts)
    assert (test.starts < 3000).any(), "it should be spread over the text"
    assert (test.starts > 3000).any()


def test_a_corpus_own_split_takes_its_parts():
    tokens = Tokens("t", {"train": torch.arange(50), "valid": torch.arange(100, 130)}, Vocabulary("byte"))
    train, test = windows(tokens, 9, "own")
    assert (len(train), len(test)) == (5, 3)
    assert test[torch.tensor([0])][0].tolist() == [list(range(100, 109))]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda words: windows(words, 16, "own"), "has no part 'valid', only train; take split='paper'"),
        (lambda words: windows(words, 16, "half"), "one of paper, own, got 'half'"),
        (lambda words: windows(words, 10_000), "has 0 windows of 10000 tokens"),
        (lambda words: windows(words, 0), "at least 1 token, got 0"),
        (lambda words: gpt_net(10, "gpt-7"), "one of gpt, gpt-6, gpt-4, gpt-tiny, got 'gpt-7'"),
        (lambda words: recipe_plan("bert"), "must be one of gpt, roberta.*got 'bert'"),
        (lambda words: tiny(words, epochs=0), "epochs must be positive, got 0"),
    ],
)
def test_mistakes_say_what_would_work(words, call, message):
    with pytest.raises(ValueError, match=message):
        call(words)


# -- plans -----------------------------------------------------------------------------------------------------------


def test_gpt_has_the_hyperparameters_of_the_papers_table():
    plan = recipe_plan("gpt")
    adam = plan.optimizer
    assert (adam.eta, adam.beta1, adam.beta2, adam.eps, adam.weight_decay) == (1e-3, 0.9875, 0.996, 2e-8, 1e-4)
    assert (plan.batch_size.total, plan.steps, plan.schedule.warmup, plan.clip) == (1024, 12_500, 1000, None)
    rates = [plan.learning_rate(k) for k in (0, 500, 1000, 6750, 12_500)]
    assert rates == pytest.approx([0, 5e-4, 1e-3, 5e-4, 0])


def test_other_batch_sizes_are_converted_by_the_rule():
    plan = recipe_plan("gpt", batch_size=64, samples=12_500 * 1024)
    adam = plan.optimizer
    assert adam.eta == pytest.approx(1e-3 / 4)
    assert (1 - adam.beta1, 1 - adam.beta2, adam.eps) == pytest.approx((0.0125 / 16, 0.004 / 16, 8e-8))
    assert (plan.steps, plan.schedule.warmup) == (200_000, 16_000)
    assert plan.at(1024).optimizer.beta1 == pytest.approx(0.9875)
    small = recipe_plan("gpt", batch_size=16, samples=4000, reference=4)
    assert (small.optimizer.eta, small.optimizer.beta1) == pytest.approx((2e-3, 0.95))
    assert (small.steps, small.schedule.warmup) == (250, 20)


# -- GPT -------------------------------------------------------------------------------------------------------------


def test_the_net_is_that_of_transformers_and_has_the_papers_size():
    assert GPTS["gpt"] == (12, 768, 12)
    net = gpt_net(40, "gpt-tiny", 16).eval()
    tokens = torch.randint(40, (3, 16))
    torch.testing.assert_close(net(tokens), net.net(tokens).logits)
    config = net.net.config
    assert (config.resid_pdrop, config.embd_pdrop, config.attn_pdrop) == (0.1, 0.1, 0.1)
    with torch.device("meta"):
        large = gpt_net(50_257)
    assert large.net.config.n_inner == 3072
    assert large.net.lm_head.weight is large.net.transformer.wte.weight
    count = sum(p.numel() for p in large.parameters())
    # GPT-2's 124,439,808, with 47 more tokens and 128 instead of 1,024 positions
    assert count == 124_439_808 + 47 * 768 - (1024 - 128) * 768


def test_net_and_data_are_one_graph_each(words):
    """So that torch.compile and CUDA graphs can hold them."""
    task = tiny(words)
    net, index = task.model(), torch.arange(4)
    x, y = torch.compile(lambda index: task.train[index], backend="eager", fullgraph=True)(index)
    assert torch.equal(x, task.train[index][0])
    assert torch.equal(y, task.train[index][1])
    logits = torch.compile(net.eval(), backend="eager", fullgraph=True)(x)
    torch.testing.assert_close(logits, net(x))


def test_a_token_does_not_see_those_after_it():
    net = gpt_net(40, "gpt-tiny", 16).eval()
    tokens = torch.randint(40, (1, 16))
    other = tokens.clone()
    other[0, 10] = (other[0, 10] + 1) % 40
    before, after = net(tokens), net(other)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_the_loss_of_a_sample_is_the_mean_over_its_tokens():
    outputs, targets = torch.randn(3, 5, 7), torch.randint(7, (3, 5))
    expected = -outputs.log_softmax(-1).gather(-1, targets[..., None]).mean((1, 2))
    torch.testing.assert_close(token_loss(outputs, targets), expected)


def test_a_small_gpt_learns_which_word_follows(words):
    task = tiny(words, epochs=4, dropout=0.0)
    total = int(task.plan.samples)
    found = Trial(
        task, Variant(), [0], Settings(grid=(0, total), measure=Measure(eval_samples=64, noise=False))
    ).finish()
    start, end = found.values["test loss"][0]
    assert start == pytest.approx(math.log(words.vocabulary.size), abs=0.2)
    assert end < start - 0.7
    assert found.values["test accuracy"][0, -1] > 0.4


def test_parts_of_a_batch_make_the_gradient_of_the_whole(words):
    task = tiny(words, dropout=0.0)
    settings = Settings(grid=(0, 64), measure=Measure(eval_samples=48))
    whole, parts = (
        Trial(task, Variant(4), [0], replace(settings, setup=Setup(micro=micro))).finish() for micro in (None, 3)
    )
    for name in whole.names:
        assert parts.values[name] == pytest.approx(whole.values[name], rel=2e-3, abs=1e-5), name


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_replicas_train_together_as_they_do_alone(words):
    task = tiny(words, dropout=0.0)
    settings = Settings(grid=(0, 32), measure=Measure(eval_samples=16, noise=False))
    both = Trial(task, Variant(), [0, 1], settings).finish().values["train loss"]
    alone = [Trial(task, Variant(), [seed], settings).finish().values["train loss"][0] for seed in (0, 1)]
    assert both == pytest.approx(np.array(alone), rel=1e-4)


def test_what_decides_a_run_is_seen_by_the_sweep(words):
    tasks = [tiny(words), tiny(words, dropout=0.0), tiny(words, length=8), tiny(from_text(chain(20, 6000, seed=1)))]
    first, *others = (Fingerprints().of(task, [0]) for task in tasks)
    assert all(differences(first, other) for other in others)
    assert not differences(first, Fingerprints().of(tiny(words), [0]))


def test_as_many_sequences_at_once_as_the_vocabulary_allows():
    for length, vocabulary in ((128, 267_735), (64, 33_278), (128, 256)):
        micro = micro_batch(length, vocabulary)
        assert micro * length * vocabulary <= 2**31
        assert micro == 512 or 2 * micro * length * vocabulary > 2**31
    assert Fraction(micro_batch(128, 50_257)) == 256


# -- masked language models ------------------------------------------------------------------------------------------


def masked(words, **changes):
    training = {"epochs": 1, "batch_size": 4, "reference": 4, "eta": 1e-2}
    return made(roberta, words, {"model": "roberta-tiny", "length": 18}, training, changes)


def test_roberta_has_the_hyperparameters_of_the_papers_table():
    plan = recipe_plan("roberta")
    adam = plan.optimizer
    assert (adam.eta, adam.beta1, adam.beta2, adam.eps, adam.weight_decay) == (1e-3, 0.99375, 0.996, 2e-6, 1e-4)
    assert (plan.batch_size.total, plan.steps, plan.schedule.warmup, plan.clip) == (1024, 92_000, 5520, None)


def test_tokens_are_hidden_as_roberta_does():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1000, (2000, 40), generator=generator)
    vocabulary, n, k = 1000, 40, 6
    rows = hide(tokens, torch.rand(2000, n + 2 * k, generator=generator), vocabulary)
    assert rows.shape == (2000, 3, 42)
    seen, original, told = rows.unbind(1)
    assert torch.equal(original[:, 1:-1], tokens)
    assert told[:, [0, -1]].sum() == 0
    assert (told.sum(1) == k).all()
    assert (seen[:, 0] == 1001).all()
    assert (seen[:, -1] == 1002).all()
    inner, changed = seen[:, 1:-1], told[:, 1:-1] == 1
    assert torch.equal(inner[~changed], tokens[~changed]), "only what is to be told changes"
    hidden = inner[changed] == 1003
    kept = inner[changed] == tokens[changed]
    assert hidden.float().mean() == pytest.approx(0.8, abs=0.015)
    assert kept.float().mean() == pytest.approx(0.1, abs=0.015)
    assert (inner[changed][~hidden] < 1000).all()
    places = told[:, 1:-1].float().mean(0)
    assert places == pytest.approx(torch.full((n,), k / n), abs=0.04), "all places alike"


def test_numbers_from_tokens_are_spread_evenly_and_differ_between_windows():
    tokens = torch.randint(50, (500, 16), generator=torch.Generator().manual_seed(0))
    tokens[1] = tokens[0].flip(0)
    numbers = hash_uniforms(tokens, 20)
    assert torch.equal(numbers[:10], hash_uniforms(tokens[:10], 20))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert len(numbers.unique()) > 9_900
    assert numbers.mean() == pytest.approx(0.5, abs=0.01)
    assert numbers.var() == pytest.approx(1 / 12, abs=0.003)
    assert abs(torch.corrcoef(numbers.T).fill_diagonal_(0)).max() < 0.2


def test_training_hides_other_tokens_every_time_and_measurements_the_same(words):
    task = masked(words)
    x, _ = task.train[torch.arange(8)]
    fixed = task.prepare(x)
    assert torch.equal(fixed, task.prepare(x))
    first, second = (task.augment(fixed, torch.rand(8, task.draws)) for _ in range(2))
    for rows in (fixed, first, second):
        assert torch.equal(rows[:, 1], fixed[:, 1])
        assert (rows[:, 2].sum(-1) == 2).all()
    assert not torch.equal(first[:, 2], second[:, 2])


def test_the_loss_is_the_cross_entropy_where_something_is_to_be_told(words):
    task = masked(words)
    net = task.model().eval()
    rows = task.prepare(task.train[torch.arange(5)][0])
    out = net(rows)
    logits = net.encoder.net(rows[:, 0], position_ids=torch.arange(18)[None]).logits
    losses = torch.nn.functional.cross_entropy(logits.mT, rows[:, 1], reduction="none")
    expected = (losses * rows[:, 2]).sum(1) / rows[:, 2].sum(1)
    torch.testing.assert_close(task.loss(out, rows[:, 1]), expected)
    right = ((logits.argmax(-1) == rows[:, 1]) * rows[:, 2]).sum(1) / 2
    torch.testing.assert_close(task.metrics["accuracy"](out, rows[:, 1]), right)


def test_roberta_large_has_the_papers_size():
    with torch.device("meta"):
        net = roberta_net(50_265)
    config = net.encoder.net.config
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (24, 1024, 4096)
    assert config.max_position_embeddings == 128
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)
    assert net.predicted == 19
    assert sum(p.numel() for p in net.parameters()) == pytest.approx(355e6, rel=0.01)


def test_padding_is_not_seen(words):
    net = encoder_net(30, "roberta-tiny", 12, 0.1).eval()
    tokens = torch.randint(30, (2, 12))
    there = torch.arange(12) < torch.tensor([[7], [12]])
    other = torch.where(there, tokens, (tokens + 1) % 30)
    before, after = net(tokens, there), net(other, there)
    torch.testing.assert_close(before[there], after[there])
    torch.testing.assert_close(before[1], net(tokens)[1])


def test_a_masked_model_is_one_graph(words):
    task = masked(words)
    net = task.model().eval()

    def batch(index, uniforms):
        return task.augment(task.prepare(task.train[index][0]), uniforms)

    index, uniforms = torch.arange(4), torch.rand(4, task.draws)
    rows = torch.compile(batch, backend="eager", fullgraph=True)(index, uniforms)
    assert torch.equal(rows, batch(index, uniforms))
    torch.testing.assert_close(torch.compile(net, backend="eager", fullgraph=True)(rows), net(rows))


def test_a_small_roberta_learns_and_the_noise_is_measured():
    words = from_text(chain(10, 3000, 0.95))
    task = masked(words, epochs=12, dropout=0.0, batch_size=8, reference=8)
    total = int(task.plan.samples)
    found = Trial(task, Variant(), [0], Settings(grid=(0, total), measure=Measure(eval_samples=64))).finish()
    start, end = found.values["test loss"][0]
    assert start == pytest.approx(math.log(words.vocabulary.total), abs=0.4)
    assert end < start - 0.7
    assert (found.values["noise scale"] > 0).all()


# -- GLUE ------------------------------------------------------------------------------------------------------------

WORDS = Vocabulary("word", ("<unk>", "<eos>", *(f"w{i}" for i in range(10))))
PAD, BEGIN, END = (WORDS.special(name) for name in ("pad", "begin", "end"))


def write_glue(folder, name, rows, split="train", opener=open, suffix=""):
    (folder / "glue" / name).mkdir(parents=True, exist_ok=True)
    with opener(folder / "glue" / name / f"{split}.tsv{suffix}", "wb") as file:
        file.write(("\n".join("\t".join(row) for row in rows) + "\n").encode())


def test_files_of_glue_are_read_as_they_are_published(tmp_path):
    header = [f"c{i}" for i in range(10)]
    write_glue(tmp_path, "CoLA", [["gj04", "1", "", 'w1 "w2 w3'], ["gj04", "0", "*", "w3"]], "train", lzma.open, ".xz")
    assert read_glue(tmp_path, "CoLA") == ([('w1 "w2 w3',), ("w3",)], [1.0, 0.0])
    write_glue(tmp_path, "RTE", [header[:4], ["0", "a", "b", "entailment"], ["1", "c", "d", "not_entailment"]])
    assert read_glue(tmp_path / "glue", "RTE") == ([("a", "b"), ("c", "d")], [1.0, 0.0])
    write_glue(tmp_path, "STS-B", [header, [*"0123456", "a", "b", "2.5"]], "dev")
    assert read_glue(tmp_path / "glue" / "STS-B", "STS-B", "dev") == ([("a", "b")], [2.5])
    row = [*"01234567", "a", "b", "x", "neutral"]
    write_glue(tmp_path, "MNLI", [[*header, "l", "gold"], row], "dev_matched")
    assert read_glue(tmp_path, "MNLI", "dev") == ([("a", "b")], [2.0])


def test_a_broken_file_of_glue_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"there is no train.tsv .* of MRPC in"):
        read_glue(tmp_path, "MRPC")
    write_glue(tmp_path, "MRPC", [["h"], ["1", "2", "3"]])
    with pytest.raises(ValueError, match=r"MRPC/train.tsv must have lines of at least 5 columns .* got 0 of 1"):
        read_glue(tmp_path, "MRPC")
    write_glue(tmp_path, "CoLA", [["x", "yes", "", "w1"]])
    with pytest.raises(ValueError, match=r"labels of .*CoLA/train.tsv \(column 1\) must be one of 0, 1"):
        read_glue(tmp_path, "CoLA")
    with pytest.raises(ValueError, match=r"one of CoLA, SST-2, .* got 'COLA'"):
        read_glue(tmp_path, "COLA")


def test_sentences_and_pairs_are_put_together_as_roberta_does():
    ids = {f"w{i}": WORDS.encode(f"w{i}")[0] for i in range(10)}
    rows = encode_texts([("w1 w2",), ("w1 w2 w3 w4 w5 w6 w7 w8 w9",)], WORDS, 8)
    assert rows[0].tolist() == [BEGIN, ids["w1"], ids["w2"], END, PAD, PAD, PAD, PAD]
    assert rows[1].tolist() == [BEGIN, *(ids[f"w{i}"] for i in range(1, 7)), END]
    (pair,) = encode_texts([("w1 w2 w3 w4 w5", "w6")], WORDS, 8)
    assert pair.tolist() == [BEGIN, ids["w1"], ids["w2"], ids["w3"], END, END, ids["w6"], END], "the longer is cut"


def test_sentences_are_cut_up_as_the_text_of_the_vocabulary():
    words = Vocabulary("word", ("<unk>", "a", "dog", ".", "@-@", "'s"))
    (row,) = encode_texts([("a dog's dog-a.",)], words, 10)
    assert row[1:8].tolist() == words.encode("a dog 's dog @-@ a .")
    (row,) = encode_texts([("a.",)], Vocabulary("byte"), 10)
    assert row[1:3].tolist() == list(b"a."), "pieces of a BPE and bytes need no spaces"


def test_inputs_are_as_long_as_the_longest_text_needs(sentences):
    vocabulary = from_text(chain(10, 1500, 0.95)).vocabulary
    options = {"point": Point(16, 1e-2, 1), "model": "roberta-tiny", "positions": 128}
    task = fine_tuning("CoLA", sentences, vocabulary, **options)
    assert task.train.inputs.shape == (256, 8), "six tokens, in multiples of 8"
    other = sentences / "longer"
    for split in ("train", "dev"):
        write_glue(other, "CoLA", [["s", "1", "", " ".join(["w1"] * 40)]], split)
    task = fine_tuning("CoLA", other, vocabulary, **options)
    assert (task.train.inputs.shape[1], task.test.inputs.shape[1]) == (48, 48)
    assert task.model().encoder.net.config.max_position_embeddings == 128
    assert task.model()(task.test.inputs).shape == (1, 2)
    short = {**options, "positions": 20}
    assert fine_tuning("CoLA", other, vocabulary, **short).test.inputs.shape[1] == 20
    with pytest.raises(ValueError, match="positions must be at least 8, got 7"):
        fine_tuning("CoLA", sentences, vocabulary, **{**options, "positions": 7})


def test_a_file_that_holds_no_models_is_refused(sentences, tmp_path):
    torch.save({"a": torch.zeros(1)}, tmp_path / "a.pt")
    vocabulary = from_text(chain(10, 1500, 0.95)).vocabulary
    with pytest.raises(ValueError, match=r"a.pt must hold a list of models.*with one at 0"):
        fine_tuning("CoLA", sentences, vocabulary, point=Point(16, 1e-2, 1), models={0: (tmp_path / "a.pt", 0)})


def test_the_grid_is_that_of_the_papers_table():
    assert {name: len(task.grid()) for name, task in GLUE.items()} == {
        "CoLA": 24, "SST-2": 24, "MRPC": 24, "STS-B": 24, "QQP": 4, "MNLI": 4, "QNLI": 4, "RTE": 24,
    }  # fmt: skip
    assert Point(16, 3e-5, 5) in GLUE["RTE"].grid()
    assert {point.batch_size for point in GLUE["QQP"].grid()} == {32}


def test_scores_are_those_of_glue():
    class Fixed(torch.nn.Module):
        def __init__(self, outputs):
            super().__init__()
            self.outputs = torch.nn.Parameter(outputs)

        def forward(self, x):
            return self.outputs[x[:, 0]]

    index = torch.arange(6)[:, None]
    told, true = torch.tensor([1, 1, 0, 0, 1, 0]), torch.tensor([1, 0, 0, 0, 1, 1])
    model = Fixed(torch.nn.functional.one_hot(told, 2).float())
    scores = {name: Score(name, Tensors(index, true), 4)(model) for name in ("accuracy", "F1", "Matthews correlation")}
    assert scores == pytest.approx({"accuracy": 4 / 6, "F1": 4 / 6, "Matthews correlation": 1 / 3})
    numbers = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    rising = Score("Spearman correlation", Tensors(index, numbers))
    assert rising(Fixed(numbers.exp()[:, None])) == pytest.approx(1)
    assert rising(Fixed(-numbers[:, None])) == pytest.approx(-1)
    assert rising(Fixed(torch.zeros(6, 1))) == 0
    assert math.isnan(rising(Fixed(torch.full((6, 1), math.nan))))


@pytest.fixture
def sentences(tmp_path):
    """A task of the form of CoLA: whether the sentence begins with w1."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 256), ("dev", 64)):
        first = np.where(generator.random(count) < 0.5, 1, generator.integers(2, 10, size=count))
        rest = generator.integers(10, size=(count, 3))
        rows = [
            ["s", str(int(a == 1)), "", " ".join(f"w{i}" for i in (a, *b))] for a, b in zip(first, rest, strict=True)
        ]
        write_glue(tmp_path, "CoLA", rows, split)
    return tmp_path


def test_fine_tuning_starts_from_the_pretrained_encoder_and_learns(sentences, tmp_path):
    text_of_pretraining = from_text(chain(10, 1500, 0.95))
    vocabulary = text_of_pretraining.vocabulary
    before = masked(text_of_pretraining, epochs=2)
    settings = Settings(grid=(0, int(before.plan.samples)), measure=Measure(noise=False))
    pretrained = sweep(
        before, [Variant(2)], seeds=[3, 4], settings=settings, execute=Here(1),
        store=Store(tmp_path / "runs", keep_models=True),
    ).models  # fmt: skip
    options = {"point": Point(16, 1e-2, 8), "model": "roberta-tiny", "positions": 18}
    models = {seed: pretrained[Variant(2), seed] for seed in (3, 4)}
    task = fine_tuning("CoLA", sentences, vocabulary, models=models, **options)
    for seed, (path, place) in models.items():
        stored = torch.load(path, weights_only=True)[place]
        torch.manual_seed(seed)
        for name, value in task.model().encoder.state_dict().items():
            assert torch.equal(value, stored[f"encoder.{name}"])
    others = [
        fine_tuning("CoLA", sentences, vocabulary, **options),
        fine_tuning("CoLA", sentences, vocabulary, models={3: models[3]}, **options),
    ]
    assert len({task.name, *(other.name for other in others)}) == 3, "the sweep must not mix them up"
    adam, steps = task.plan.optimizer, task.plan.steps
    assert (adam.beta1, adam.beta2, adam.eps, adam.weight_decay) == (0.9, 0.98, 1e-6, 0.1)
    assert (steps, task.plan.schedule.warmup) == (128, Fraction(768, 100))
    total = int(task.plan.samples)
    found = Trial(
        task, Variant(), [4], Settings(grid=(0, total), measure=Measure(noise=False), setup=Setup(replacement=False))
    ).finish()
    assert found.values["Matthews correlation"][0, -1] > 0.8
