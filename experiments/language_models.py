"""The paper's language models as tasks: GPT and RoBERTa on any text, with the hyperparameters of its appendix.

A sample is a window of tokens, and its loss the mean over its tokens, so that the losses that are measured are the
train and validation log-perplexity. The nets are those of ``transformers`` (extra ``transformers``), randomly
initialised. Their layers are called one by one, since the library's own ``forward`` looks at the values of masks, which
cannot be part of a CUDA graph.

A masked language model hides other tokens every time it sees a window. A `Task` may change inputs only, by ``augment``,
and its loss sees outputs and targets only; so the inputs are three rows, ``[3, length]``: the tokens with some hidden,
the tokens themselves, and which ones are to be predicted. The net computes logits where something is predicted (15 % of
the places, which saves most of the memory) and gives ``[loss, right or wrong]`` for each of those places. ``prepare``
hides tokens by a hash of the window, so that runs are measured on the same places every time; ``augment`` hides others
in training, by the lab's uniforms.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import torch
from text import SPECIAL, Tokens, chain, corpus, from_text, tokenise, windows
from torch import Tensor, nn
from torch.nn import functional as F

from rootscale import AdamW, BatchSize, Plan, Schedule
from rootscale.lab import Measure, Settings, Setup, Task, grid

__all__ = [
    "GPTS", "RECIPES", "ROBERTAS", "Encoder", "MaskedLM", "Setting", "Training", "encoder_net", "enwik8_gpt",
    "generated", "gpt", "gpt_net", "hash_uniforms", "hide", "micro_batch", "recipe_plan", "roberta", "roberta_net",
    "spaced", "tiny", "token_loss", "tokens_of",
]  # fmt: skip

# -- hyperparameters ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """An optimizer of the paper's appendix at its batch size, and its linear schedule.

    Args:
        optimizer: at ``batch_size``; weight decay is decoupled, as in the code that the paper used (fairseq's Adam).
        warmup: the share of the run; the learning rate then falls linearly to 0.
        steps: the paper's, at that batch size.
        batch_size: in sequences.
    """

    optimizer: AdamW
    warmup: Fraction
    steps: int
    batch_size: int = 1024


#: From the appendix "Experiment Configuration Details": the tables of GPT and RoBERTa (pre-training). Clipping is off.
#: The SVAG experiments fix the betas at .9 and .98.
RECIPES: Mapping[str, Recipe] = {
    "gpt": Recipe(AdamW(1e-3, 0.9875, 0.996, 2e-8, weight_decay=1e-4), Fraction(1000, 12_500), 12_500),
    "roberta": Recipe(AdamW(1e-3, 0.99375, 0.996, 2e-6, weight_decay=1e-4), Fraction(5520, 92_000), 92_000),
    "gpt-svag": Recipe(AdamW(1e-3, 0.9, 0.98, 2e-8, weight_decay=1e-4), Fraction(2, 25), 12_500),
    "roberta-svag": Recipe(AdamW(1e-3, 0.9, 0.98, 2e-6, weight_decay=1e-4), Fraction(3, 50), 92_000),
}


def recipe_plan(
    name: str, *, batch_size: int = 1024, samples: int | None = None, eta: float | None = None,
    reference: int | None = None,
) -> Plan:  # fmt: skip
    """Return a run of the paper, at its batch size of 1024 or converted to another by the rule.

    Args:
        name: one of `RECIPES`.
        batch_size: in sequences; all hyperparameters are converted from 1024 to it.
        samples: sequences of the whole run; None is the paper's number. The warm-up keeps its share.
        eta: another learning rate than the paper's.
        reference: the batch size at which the paper's values are taken to hold, for small copies of its experiments;
            None is its own.

    >>> plan = recipe_plan("gpt", batch_size=256)
    >>> plan.steps, plan.schedule.warmup, plan.optimizer.eta, plan.optimizer.beta1
    (50000, 4000, 0.0005, 0.996875)
    """
    if name not in RECIPES:
        raise ValueError(f"a recipe must be one of {', '.join(RECIPES)}, got {name!r}")
    recipe = RECIPES[name]
    optimizer = recipe.optimizer if eta is None else replace(recipe.optimizer, eta=eta)
    size = recipe.batch_size if reference is None else reference
    steps = Fraction(recipe.steps) if samples is None else Fraction(samples, size)
    plan = Plan(optimizer, BatchSize(size), steps=steps, schedule=Schedule("linear", warmup=steps * recipe.warmup))
    return plan.convert(batch_size, "with paper").plan  # a run at a much larger batch warns by itself


@dataclass(frozen=True)
class Training:
    """How long a language model is trained, at which batch size, and by which recipe.

    Args:
        recipe: one of `RECIPES`; empty is that of the model.
        batch_size: in sequences, to which the recipe is converted.
        epochs: the length of the run; None is the paper's number of sequences.
        eta: another learning rate than the paper's.
        reference: the batch size at which the recipe's values are taken to hold; None is the paper's 1024.
    """

    recipe: str = ""
    batch_size: int = 1024
    epochs: float | None = None
    eta: float | None = None
    reference: int | None = None

    def plan(self, samples: int) -> Plan:
        """Return the plan of a run on a text of so many windows; it is a whole number of steps long."""
        if self.epochs is not None and self.epochs <= 0:
            raise ValueError(f"epochs must be positive, got {self.epochs}")
        length = None
        if self.epochs is not None:
            length = max(1, int(self.epochs * samples) // self.batch_size) * self.batch_size
        return recipe_plan(
            self.recipe, batch_size=self.batch_size, samples=length, eta=self.eta, reference=self.reference
        )


def micro_batch(length: int, vocabulary: int, most: int = 512) -> int:
    """Return how many sequences go through a model at once: a power of 2 with at most 2^31 outputs (8 GB of floats).

    >>> micro_batch(128, 50_257), micro_batch(128, 256)
    (256, 512)
    """
    fit = max(1, 2**31 // (length * vocabulary))
    return min(most, 1 << (fit.bit_length() - 1))


# -- GPT ---------------------------------------------------------------------------------------------------------------

#: Layers, width and heads of each GPT; the feed-forward layers are four times as wide. ``gpt`` is the paper's.
GPTS: Mapping[str, tuple[int, int, int]] = {
    "gpt": (12, 768, 12), "gpt-6": (6, 512, 8), "gpt-4": (4, 256, 4), "gpt-tiny": (2, 32, 2),
}  # fmt: skip


class GPT(nn.Module):
    """GPT-2's net of ``transformers``: tokens [n, length] to logits [n, length, vocabulary].

    Args:
        config: a ``GPT2Config``.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.net = _transformers("gpt2.modeling_gpt2").GPT2LMHeadModel(config)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the token after each."""
        body = self.net.transformer
        places = torch.arange(tokens.shape[-1], device=tokens.device)
        hidden = body.drop(body.wte(tokens) + body.wpe(places))
        for block in body.h:
            hidden = _tensor(block(hidden))  # without a mask, attention is causal
        logits: Tensor = self.net.lm_head(body.ln_f(hidden))
        return logits

    def extra_repr(self) -> str:
        """What the layers do not show."""
        return f"heads={self.net.config.n_head}"


def gpt_net(vocabulary: int, model: str = "gpt", length: int = 128, dropout: float = 0.1) -> nn.Module:
    """Return a GPT of `GPTS`, randomly initialised; the paper's dropout of activations and attention is .1.

    Above 1,024 tokens the vocabulary is filled up to a multiple of 64, which is faster; those tokens never come.
    """
    if model not in GPTS:
        raise ValueError(f"model must be one of {', '.join(GPTS)}, got {model!r}")
    layers, width, heads = GPTS[model]
    config = _transformers("gpt2.configuration_gpt2").GPT2Config(
        vocab_size=_filled(vocabulary), n_positions=length, n_layer=layers, n_embd=width, n_inner=4 * width,
        n_head=heads, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, use_cache=False, bos_token_id=None,
        eos_token_id=None, attn_implementation="sdpa",
    )  # fmt: skip
    return GPT(config)


def gpt(
    tokens: Tokens, *, model: str = "gpt", length: int = 128, split: str = "paper", dropout: float = 0.1,
    training: Training = Training(),  # noqa: B008 (frozen)
) -> Task:  # fmt: skip
    """Return GPT on a text, as in the paper: 12 layers, sequences of 128 (64 for SVAG), Adam (`RECIPES`), dropout .1.

    Args:
        tokens: of the text (`text.tokenise`).
        model: one of `GPTS`.
        length: of a sequence.
        split: as for `text.windows`.
        dropout: of activations and attention.
        training: how long, at which batch size, and by which recipe: ``gpt``, or ``gpt-svag``.
    """
    train, test = windows(tokens, length, split)
    training = replace(training, recipe=training.recipe or "gpt")
    make = partial(gpt_net, tokens.vocabulary.size, model, length, dropout)
    name = f"{training.recipe}-{model}-{tokens.name}-{length}-{split}"
    return Task(name, training.plan(len(train)), make, token_loss, train, test, {"accuracy": token_accuracy})


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over the tokens of each sample of the cross-entropy: its log-perplexity."""
    losses = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(targets.shape).mean(-1)


def token_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of each sample's tokens that have the largest output."""
    return (outputs.argmax(-1) == targets).float().mean(-1)


# -- which tokens a masked language model predicts ---------------------------------------------------------------------

#: Of the tokens that are to be predicted, these shares are hidden, or replaced by a random token; the rest is left.
HIDDEN, REPLACED = 0.8, 0.1


def predicted_count(length: int, rate: float = 0.15) -> int:
    """Return how many of so many tokens are to be predicted: the same number in every window, at least 1.

    >>> predicted_count(126)
    19
    """
    return max(1, round(rate * length))


def hide(tokens: Tensor, uniforms: Tensor, vocabulary: int, rate: float = 0.15) -> Tensor:
    """Return three rows of each window of n tokens, with begin and end around it: ``[..., 3, n + 2]``.

    The rows are the tokens with some hidden, the tokens, and 1 where a token is to be predicted. Of ``n + 2 k``
    uniforms, the first n choose the k places (the largest are taken), the next k what is done there, the last k by
    which tokens.

    Args:
        tokens: ``[..., n]``.
        uniforms: ``[..., n + 2 k]`` with k of `predicted_count`.
        vocabulary: how many ordinary tokens there are.
        rate: the share of tokens that are to be predicted; RoBERTa's is .15, and the paper does not say.
    """
    n = tokens.shape[-1]
    k = predicted_count(n, rate)
    places = uniforms[..., :n].topk(k, -1).indices
    what, which = uniforms[..., n : n + k], uniforms[..., n + k : n + 2 * k]
    own = tokens.gather(-1, places)
    other = (which * vocabulary).long().clamp(max=vocabulary - 1)
    mask = torch.full_like(own, vocabulary + SPECIAL.index("mask"))
    put = torch.where(what < HIDDEN, mask, torch.where(what < HIDDEN + REPLACED, other, own))
    predicted = torch.zeros_like(tokens).scatter(-1, places, torch.ones_like(own))
    rows = torch.stack([tokens.scatter(-1, places, put), tokens, predicted], -2)
    begin = torch.full_like(rows[..., :1], vocabulary + SPECIAL.index("begin"))
    end = torch.full_like(rows[..., :1], vocabulary + SPECIAL.index("end"))
    edge = torch.ones_like(rows[..., :1]).cumsum(-2) < 3  # begin and end are never to be predicted
    return torch.cat([begin * edge, rows, end * edge], -1)


def hash_uniforms(tokens: Tensor, draws: int) -> Tensor:
    """Return numbers in [0, 1) that depend on the tokens only: ``[..., draws]``, spread like random ones."""
    low = 0xFFFFFFFF
    key = _mixed((tokens * 0x9E3779B1 + _places(tokens) * 0x85EBCA77) & low).sum(-1, keepdim=True) & low
    numbers = (_places(key.expand(*key.shape[:-1], draws)) - 1) * 0x27D4EB2F
    return (_mixed(_mixed(key) ^ _mixed(numbers & low)) >> 8).float() / 2**24


def _places(numbers: Tensor) -> Tensor:
    """Return 1, 2, 3, ... along the last axis, counted from numbers that are not negative.

    ``torch.compile`` would compute with those of ``arange`` in 32 bits on a GPU, which are too few for the factors.
    """
    return (numbers >= 0).long().cumsum(-1)


def _mixed(x: Tensor) -> Tensor:
    """Return the last part of MurmurHash3, on 32 bits."""
    low = 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & low
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & low
    return x ^ (x >> 16)


def hide_alike(tokens: Tensor, vocabulary: int, rate: float) -> Tensor:
    """Hide the same tokens of a window every time, for measurements."""
    n = tokens.shape[-1]
    return hide(tokens, hash_uniforms(tokens, n + 2 * predicted_count(n, rate)), vocabulary, rate)


def hide_anew(rows: Tensor, uniforms: Tensor, vocabulary: int, rate: float) -> Tensor:
    """Hide other tokens of the same windows, for training."""
    return hide(rows[..., 1, 1:-1], uniforms, vocabulary, rate)


# -- RoBERTa -----------------------------------------------------------------------------------------------------------

#: Layers, width and heads; ``roberta-large`` is the paper's.
ROBERTAS: Mapping[str, tuple[int, int, int]] = {
    "roberta-large": (24, 1024, 16), "roberta-base": (12, 768, 12), "roberta-small": (6, 512, 8),
    "roberta-tiny": (2, 32, 2),
}  # fmt: skip


class Encoder(nn.Module):
    """RoBERTa's net of ``transformers`` with its head: tokens [n, length] to what the last layer gives.

    Args:
        config: a ``RobertaPreLayerNormConfig``.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        library = _transformers("roberta_prelayernorm.modeling_roberta_prelayernorm")
        self.net = library.RobertaPreLayerNormForMaskedLM(config)

    def forward(self, tokens: Tensor, there: Tensor | None = None) -> Tensor:
        """Features [n, length, width]; ``there`` is False for padding."""
        body = self.net.base_model
        places = torch.arange(tokens.shape[-1], device=tokens.device)[None]
        hidden = body.embeddings(input_ids=tokens, position_ids=places)
        mask = None if there is None else there[:, None, None, :].expand(-1, 1, tokens.shape[-1], -1)
        for layer in body.encoder.layer:
            hidden = _tensor(layer(hidden, mask))
        features: Tensor = body.LayerNorm(hidden)
        return features

    def extra_repr(self) -> str:
        """What the layers do not show."""
        return f"heads={self.net.config.num_attention_heads}"


class MaskedLM(nn.Module):
    """A masked language model: rows of `hide` [n, 3, length] to ``[n, k, 2]``, loss and 1 or 0 at each place.

    Args:
        encoder: the net.
        predicted: how many places there are in each window.
    """

    def __init__(self, encoder: Encoder, predicted: int) -> None:
        super().__init__()
        self.encoder, self.predicted = encoder, predicted

    def forward(self, rows: Tensor) -> Tensor:
        """Losses and whether the largest output is right."""
        seen, tokens, predicted = rows.unbind(-2)
        places = predicted.topk(self.predicted, -1).indices
        hidden = self.encoder(seen)
        hidden = hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))
        logits = self.encoder.net.lm_head(hidden)
        targets = tokens.gather(-1, places)
        losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none").view(targets.shape)
        return torch.stack([losses, (logits.argmax(-1) == targets).to(losses.dtype)], -1)

    def extra_repr(self) -> str:
        """What the layers do not show."""
        return f"predicted={self.predicted}"


def masked_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of each window of a `MaskedLM`: its log-perplexity."""
    return outputs[..., 0].mean(-1)


def masked_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of hidden tokens of each window that a `MaskedLM` predicts."""
    return outputs[..., 1].mean(-1)


def encoder_net(vocabulary: int, model: str = "roberta-large", length: int = 128, dropout: float = 0.1) -> Encoder:
    """Return an encoder of `ROBERTAS`, randomly initialised, for so many tokens (those of `text.SPECIAL` included).

    LayerNorm stands before each part of a layer, as in the code that the paper used; after it, as in the original
    RoBERTa, 24 layers hardly train at its learning rate.
    """
    if model not in ROBERTAS:
        raise ValueError(f"model must be one of {', '.join(ROBERTAS)}, got {model!r}")
    layers, width, heads = ROBERTAS[model]
    library = _transformers("roberta_prelayernorm.configuration_roberta_prelayernorm")
    config = library.RobertaPreLayerNormConfig(
        vocab_size=_filled(vocabulary), max_position_embeddings=length, num_hidden_layers=layers, hidden_size=width,
        intermediate_size=4 * width, num_attention_heads=heads, hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout, type_vocab_size=1, pad_token_id=None, bos_token_id=None,
        eos_token_id=None, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    return Encoder(config)


def roberta_net(
    vocabulary: int, model: str = "roberta-large", length: int = 128, dropout: float = 0.1, rate: float = 0.15
) -> nn.Module:
    """Return a `MaskedLM` of `ROBERTAS`."""
    return MaskedLM(encoder_net(vocabulary, model, length, dropout), predicted_count(length - 2, rate))


def roberta(
    tokens: Tokens, *, model: str = "roberta-large", length: int = 128, split: str = "paper", dropout: float = 0.1,
    rate: float = 0.15, training: Training = Training(),  # noqa: B008 (frozen)
) -> Task:  # fmt: skip
    """Return a masked language model on a text, as in the paper: RoBERTa-large, sequences of 128, Adam (`RECIPES`).

    Args:
        tokens: of the text (`text.tokenise`).
        model: one of `ROBERTAS`.
        length: of a sequence, begin and end included.
        split: as for `text.windows`.
        dropout: of activations and attention.
        rate: the share of tokens that are to be predicted.
        training: how long, at which batch size, and by which recipe: ``roberta``, or ``roberta-svag``.
    """
    if length < 4:
        raise ValueError(f"sequences of a masked model must have at least 4 tokens, got {length}")
    train, test = windows(tokens, length - 2, split, ahead=0)
    training = replace(training, recipe=training.recipe or "roberta")
    size, n = tokens.vocabulary.size, length - 2
    return Task(
        f"{training.recipe}-{model}-{tokens.name}-{length}-{split}",
        training.plan(len(train)),
        partial(roberta_net, tokens.vocabulary.total, model, length, dropout, rate),
        masked_loss,
        train,
        test,
        {"accuracy": masked_accuracy},
        prepare=partial(hide_alike, vocabulary=size, rate=rate),
        augment=partial(hide_anew, vocabulary=size, rate=rate),
        draws=n + 2 * predicted_count(n, rate),
    )


def _transformers(module: str) -> Any:
    try:
        return importlib.import_module(f"transformers.models.{module}")
    except ImportError as error:
        raise ValueError(
            f"language models need transformers ({error}); pip install 'rootscale[transformers]'"
        ) from None


def _tensor(output: Any) -> Tensor:
    """Return what a layer gives: a tensor, or in some versions of the library the first of several."""
    tensor: Tensor = output if isinstance(output, Tensor) else output[0]
    return tensor


def _filled(vocabulary: int) -> int:
    return vocabulary if vocabulary <= 1024 else -(-vocabulary // 64) * 64


# -- what studies of language models share -----------------------------------------------------------------------------


@lru_cache(maxsize=4)
def tokens_of(folder: str, name: str | None, kind: str | None = None, size: int | None = None) -> Tokens:
    """Return a corpus as numbers, read once; an empty folder is ``ROOTSCALE_DATA``."""
    return tokenise(corpus(folder or None, name), kind, size)


@lru_cache(maxsize=2)
def generated(words: int, length: int, follow: float) -> Tokens:
    """Return a text for smoke tests."""
    return from_text(chain(words, length, follow), name="chain")


def spaced(
    task: Task, sizes: Sequence[int], points: int, switch_at: int = 0, eval_samples: int = 512,
    micro: int | None = None,
) -> Settings:  # fmt: skip
    """Return settings with points that are whole steps at all batch sizes, at least two of the largest apart.

    Args:
        task: that is trained to the end of its plan.
        sizes: all batch sizes that occur.
        points: at most, at which the runs are measured.
        switch_at: samples before a switch in mid-run.
        eval_samples: of each part of the data that are measured.
        micro: sequences that go through the model at once; None is all of a batch.
    """
    total, largest = int(task.plan.samples or 0), max(sizes)
    if total - switch_at < 4 * largest:
        raise ValueError(
            f"{total - switch_at:,} samples are fewer than four steps at batch size {largest:,}: take more epochs or "
            "smaller batches"
        )
    points = min(points, (total - switch_at) // (2 * largest))
    measure = Measure(points, eval_samples=eval_samples, reestimate=True)
    # Graphs and bfloat16 are for a GPU alone: on a CPU `fast` changes nothing.
    return Settings(grid(total, points, switch_at, sizes), switch_at, measure, Setup(micro=micro, fast=True))


@dataclass(frozen=True)
class Setting:
    """A language model on a text, and the runs that a study makes with it.

    Args:
        name: of the study.
        title: of model and text, for the claim.
        model: one of `GPTS` or `ROBERTAS`.
        epochs, sizes, points, seeds: of the runs; the first batch size is the base.
        corpus: one of `text.CORPORA`; None is WikiText or any text; empty is a generated one.
        recipe: of the hyperparameters.
        length: of the sequences.
        reference: the batch size at which the recipe's values are taken to hold; None is the paper's 1,024.
        eta: the learning rate at that batch size; None is the recipe's.
        kind, vocabulary: how the text is cut up, and into how many tokens; None is as usual for it.
    """

    name: str
    title: str
    model: str
    epochs: float
    sizes: tuple[int, ...]
    points: int
    seeds: int = 1
    corpus: str | None = "enwik8"
    recipe: str = "gpt"
    length: int = 128
    reference: int | None = None
    eta: float | None = None
    kind: str | None = None
    vocabulary: int | None = None

    @property
    def masked(self) -> bool:
        """Whether it is a masked language model."""
        return self.recipe.startswith("roberta")

    def small(self) -> Setting:
        """Return a tiny copy on generated text, which a CPU trains in seconds."""
        model, length, eta = ("roberta-tiny", 18, 1e-2) if self.masked else ("gpt-tiny", 16, 5e-3)
        return replace(
            self, model=model, epochs=3, sizes=(4, 8, 16)[: len(self.sizes)], points=4, seeds=1, corpus="",
            length=length, reference=4, eta=eta,
        )  # fmt: skip

    def tokens(self, data: str) -> Tokens:
        """Return the tokens of the text; a masked model learns from few, so that its generated text is simpler."""
        if self.corpus == "":
            return generated(10, 2500, 0.95) if self.masked else generated(30, 4000, 0.75)
        return tokens_of(data, self.corpus, self.kind, self.vocabulary)

    def task(self, data: str) -> Task:
        """Return the task at the first batch size."""
        training = Training(self.recipe, self.sizes[0], self.epochs, self.eta, self.reference)
        make = roberta if self.masked else gpt
        return make(self.tokens(data), model=self.model, length=self.length, training=training)

    def settings(self, task: Task, data: str, switch_at: int = 0) -> Settings:
        """Return the settings of the runs; no more sequences go through the net at once than a GPU's memory takes."""
        if self.corpus == "":
            return spaced(task, self.sizes, self.points, switch_at, eval_samples=32)
        micro = micro_batch(self.length - 2 * self.masked, self.tokens(data).vocabulary.size)
        return spaced(task, self.sizes, self.points, switch_at, micro=micro)


def enwik8_gpt(
    name: str, plan: Callable[[int], Plan], model: str = "gpt-6", length: int = 128, data: str = "", smoke: bool = False
) -> Task:
    """Return a GPT on enwik8, without dropout, as less than a tenth of the text is seen.

    Args:
        name: of the task.
        plan: of the run, given how many sequences there are.
        model: one of `GPTS`.
        length: of the sequences.
        data: folder of the text; empty is ``ROOTSCALE_DATA``.
        smoke: whether it is a tiny net on generated text instead.
    """
    tokens = generated(30, 4000, 0.75) if smoke else tokens_of(data, "enwik8")
    task = gpt(tokens, model="gpt-tiny" if smoke else model, length=16 if smoke else length, dropout=0.0)
    return replace(task, name=name, plan=plan(len(task.train)))


def tiny(data: str = "") -> Task:
    """Return a GPT of two layers on enwik8 that a CPU can train: 64,120 sequences of 32 bytes at batch size 8."""
    return gpt(tokens_of(data, "enwik8"), model="gpt-tiny", length=32, training=Training("", 8, 0.0228, 2e-3, 8))
