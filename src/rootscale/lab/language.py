"""Language models as tasks: GPT and RoBERTa as in the paper, on any text (`rootscale.lab.text`).

A sample is a window of tokens, and its loss the mean over its tokens, so that the losses that the engine measures are
the train and validation log-perplexity. The nets are those of ``transformers`` (extra ``transformers``), randomly
initialised; their layers are called one by one, since the library's own ``forward`` looks at the values of masks, which
cannot be part of a CUDA graph.

A masked language model hides other tokens every time it sees a window. A `Task` may change inputs only, by ``augment``,
and its loss sees outputs and targets only; so the inputs are three rows, ``[3, length]``: the tokens with some hidden,
the tokens themselves, and which ones are to be told. The net computes logits where something is to be told (15 % of
the places, which saves most of the memory) and gives ``[loss, right or wrong]`` for each of those places. ``prepare``
hides tokens by a hash of the window, so that runs are measured on the same places every time; ``augment`` hides others
in training, by the engine's uniforms.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rootscale import hparams
from rootscale.changes import ScalingWarning
from rootscale.files import whole
from rootscale.lab import text
from rootscale.lab.engine import Run, Settings, Variant
from rootscale.lab.task import Task, Tensors
from rootscale.lab.tasks import accuracy, cross_entropy
from rootscale.lab.text import SPECIAL, Tokens, Vocabulary
from rootscale.plan import BatchSize, Plan
from rootscale.schedule import Schedule

__all__ = [
    "GLUE",
    "GPT",
    "GPTS",
    "RECIPES",
    "ROBERTAS",
    "SPLITS",
    "Classifier",
    "Encoder",
    "Glue",
    "MaskedLM",
    "Point",
    "Recipe",
    "Score",
    "Windows",
    "encoder_net",
    "glue",
    "gpt",
    "gpt_net",
    "hash_uniforms",
    "hidden_count",
    "hide",
    "masked_accuracy",
    "masked_loss",
    "micro_batch",
    "pretrain",
    "read_glue",
    "recipe_plan",
    "roberta",
    "roberta_net",
    "token_accuracy",
    "token_loss",
    "windows",
]

#: The paper's share of training windows, and the seed of the split.
SHARE, SPLIT_SEED = 0.9, 0
#: How a text is divided: windows at random, 9:1, as in the paper, or by the parts that the corpus has.
SPLITS = ("paper", "own")


# -- data ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of a text, by number: `rootscale.lab.task.Data`.

    >>> data = Windows(torch.arange(10), torch.tensor([0, 3, 6]), length=3)
    >>> data[torch.tensor([1])]
    (tensor([[3, 4, 5]]), tensor([[4, 5, 6]]))

    Args:
        tokens: all of the text, one-dimensional, of any type of whole numbers.
        starts: where each window begins.
        length: of the inputs.
        ahead: whether the targets are the following tokens (1), or the tokens themselves (0).
    """

    tokens: Tensor
    starts: Tensor
    length: int
    ahead: int = 1

    def __post_init__(self) -> None:
        if not len(self.starts):
            raise ValueError(
                f"a text of {len(self.tokens):,} tokens has no window of {self.length + self.ahead}: take shorter ones"
            )

    def __len__(self) -> int:
        """How many windows there are."""
        return len(self.starts)

    def __getitem__(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and targets of these windows."""
        places = torch.arange(self.length + self.ahead, device=self.tokens.device)
        found = self.tokens[self.starts[index][..., None] + places].long()
        return found[..., : self.length], found[..., self.ahead :]

    def to(self, device: torch.device) -> Windows:
        """The same on another device."""
        return Windows(self.tokens.to(device), self.starts.to(device), self.length, self.ahead)


def windows(tokens: Tokens, length: int, split: str = "paper", ahead: int = 1) -> tuple[Windows, Windows]:
    """Windows to train with, and others to test with; they do not overlap.

    Args:
        tokens: of the text.
        length: of a window.
        split: ``paper``: all windows of the text, divided at random 9:1 ("uniformly with a ratio 9:1", always in the
            same way); ``own``: the parts ``train`` and ``valid`` of the corpus.
        ahead: as for `Windows`.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if split == "own":
        if "valid" not in tokens.parts:
            raise ValueError(f"{tokens.name} has no part 'valid', only {', '.join(tokens.parts)}; take split='paper'")
        train, test = tokens.parts["train"], tokens.parts["valid"]
        return Windows(train, _starts(train, length), length, ahead), Windows(
            test, _starts(test, length), length, ahead
        )
    joined = tokens.joined()
    starts = _starts(joined, length)
    starts = starts[torch.randperm(len(starts), generator=torch.Generator().manual_seed(SPLIT_SEED))]
    kept = int(SHARE * len(starts))
    if not 0 < kept < len(starts):
        raise ValueError(f"{tokens.name} has {len(starts)} windows of {length} tokens, too few to divide 9:1")
    return Windows(joined, starts[:kept], length, ahead), Windows(joined, starts[kept:], length, ahead)


def _starts(tokens: Tensor, length: int) -> Tensor:
    if length < 1:
        raise ValueError(f"windows must have at least 1 token, got {length}")
    return torch.arange(0, max(0, len(tokens) - length), length)


# -- plans -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """An optimizer of the paper's appendix at its batch size, and its linear schedule.

    Args:
        optimizer: at ``batch_size``; weight decay is decoupled, as in the code that the paper used (fairseq's Adam).
        batch_size: in sequences.
        warmup: the share of the run; the learning rate then falls linearly to 0.
        steps: the paper's, at that batch size.
    """

    optimizer: hparams.AdamW
    batch_size: int
    warmup: Fraction
    steps: int


#: From the appendix "Experiment Configuration Details": the tables of GPT and RoBERTa (pre-training). Clipping is off.
RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "gpt": Recipe(
            hparams.AdamW(1e-3, 0.9875, 0.996, 2e-8, weight_decay=1e-4), 1024, Fraction(1000, 12_500), 12_500
        ),
        "roberta": Recipe(
            hparams.AdamW(1e-3, 0.99375, 0.996, 2e-6, weight_decay=1e-4), 1024, Fraction(5520, 92_000), 92_000
        ),
        # The SVAG experiments fix the betas at .9 and .98.
        "gpt-svag": Recipe(hparams.AdamW(1e-3, 0.9, 0.98, 2e-8, weight_decay=1e-4), 1024, Fraction(2, 25), 12_500),
        "roberta-svag": Recipe(hparams.AdamW(1e-3, 0.9, 0.98, 2e-6, weight_decay=1e-4), 1024, Fraction(3, 50), 92_000),
    }
)


def recipe_plan(
    name: str,
    *,
    batch_size: int = 1024,
    samples: int | None = None,
    eps: float | None = None,
    eta: float | None = None,
    reference: int | None = None,
) -> Plan:
    """A run of the paper, at its batch size of 1024 or converted to another by the rule.

    Args:
        name: one of `RECIPES`.
        batch_size: in sequences; all hyperparameters are converted from 1024 to it.
        samples: sequences of the whole run; None is the paper's number. The warm-up keeps its share.
        eps, eta: others than the paper's at batch size 1024.
        reference: the batch size at which the paper's values are taken to hold, for small copies of its experiments;
            None is its own.

    >>> plan = recipe_plan("gpt", batch_size=256)
    >>> plan.steps, plan.schedule.warmup, plan.optimizer.eta, plan.optimizer.beta1
    (50000, 4000, 0.0005, 0.996875)
    """
    if name not in RECIPES:
        raise ValueError(f"a recipe must be one of {', '.join(RECIPES)}, got {name!r}")
    recipe = RECIPES[name]
    own = recipe.optimizer
    optimizer = hparams.AdamW(
        own.eta if eta is None else eta, own.beta1, own.beta2, own.eps if eps is None else eps,
        weight_decay=own.weight_decay,
    )  # fmt: skip
    size = recipe.batch_size if reference is None else reference
    steps = Fraction(recipe.steps) if samples is None else Fraction(samples, size)
    schedule = Schedule("linear", warmup=steps * recipe.warmup)
    plan = Plan(optimizer, BatchSize(size), steps=steps, schedule=schedule)
    with warnings.catch_warnings():  # of much larger batches: a run at them says so itself
        warnings.simplefilter("ignore", ScalingWarning)
        return plan.at(batch_size)


# -- losses ----------------------------------------------------------------------------------------------------------


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over the tokens of each sample of the cross-entropy: its log-perplexity."""
    losses = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(targets.shape).mean(-1)


def token_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of each sample's tokens that have the largest output."""
    return (outputs.argmax(-1) == targets).float().mean(-1)


def micro_batch(length: int, vocabulary: int, most: int = 512) -> int:
    """How many sequences go through a model at once: a power of 2 with at most 2^31 outputs (8 GB of floats).

    >>> micro_batch(128, 50_257), micro_batch(128, 256)
    (256, 512)
    """
    fit = max(1, 2**31 // (length * vocabulary))
    return min(most, 1 << (fit.bit_length() - 1))


# -- GPT -------------------------------------------------------------------------------------------------------------

#: Layers, width and heads of each GPT; the feed-forward layers are four times as wide. ``gpt`` is the paper's.
GPTS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {"gpt": (12, 768, 12), "gpt-6": (6, 512, 8), "gpt-4": (4, 256, 4), "gpt-tiny": (2, 32, 2)}
)


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
            hidden = _first(block(hidden))  # without a mask, attention is causal
        logits: Tensor = self.net.lm_head(body.ln_f(hidden))
        return logits

    def extra_repr(self) -> str:
        """What the layers do not show."""
        return f"heads={self.net.config.n_head}"


def gpt_net(
    vocabulary: int, model: str = "gpt", length: int = 128, dropout: float = 0.1, attention_dropout: float = 0.1
) -> nn.Module:
    """A GPT of `GPTS`, randomly initialised; the paper's dropouts are .1.

    Above 1,024 tokens the vocabulary is filled up to a multiple of 64, which is faster; those tokens never come.
    """
    if model not in GPTS:
        raise ValueError(f"model must be one of {', '.join(GPTS)}, got {model!r}")
    layers, width, heads = GPTS[model]
    config = _transformers("gpt2.configuration_gpt2").GPT2Config(
        vocab_size=_filled(vocabulary), n_positions=length, n_layer=layers, n_embd=width, n_inner=4 * width,
        n_head=heads, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=attention_dropout, use_cache=False,
        bos_token_id=None, eos_token_id=None, attn_implementation="sdpa",
    )  # fmt: skip
    return GPT(config)


def gpt(
    tokens: Tokens,
    *,
    model: str | Callable[[], nn.Module] = "gpt",
    length: int = 128,
    split: str = "paper",
    epochs: float | None = None,
    batch_size: int = 1024,
    recipe: str = "gpt",
    eps: float | None = None,
    eta: float | None = None,
    dropout: float = 0.1,
    reference: int | None = None,
) -> Task:
    """GPT on a text, as in the paper: 12 layers, sequences of 128 (64 for SVAG), Adam (`RECIPES`), dropout .1.

    Args:
        tokens: of the text (`rootscale.lab.text.tokenise`).
        model: one of `GPTS`, or a function that makes a net from tokens to logits.
        length: of a sequence.
        split: as for `windows`.
        epochs: the length of the run; None is the paper's number of sequences, 12.8 million.
        batch_size: to which the paper's hyperparameters at 1024 are converted.
        recipe: ``gpt``, or ``gpt-svag`` for the paper's SVAG experiment.
        eps, eta: others than the paper's, at batch size 1024.
        dropout: of activations and attention.
        reference: as for `recipe_plan`.
    """
    train, test = windows(tokens, length, split)
    samples = _samples(len(train), epochs, batch_size)
    plan = recipe_plan(recipe, batch_size=batch_size, samples=samples, eps=eps, eta=eta, reference=reference)
    make: Callable[[], nn.Module] = (
        partial(gpt_net, tokens.vocabulary.size, model, length, dropout, dropout) if isinstance(model, str) else model
    )
    name = f"{recipe}-{model if isinstance(model, str) else 'own'}-{tokens.name}-{length}-{split}"
    return Task(name, plan, make, token_loss, train, test, {"accuracy": token_accuracy})


# -- masked language models ------------------------------------------------------------------------------------------

#: Layers, width and heads; ``roberta-large`` is the paper's.
ROBERTAS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        "roberta-large": (24, 1024, 16),
        "roberta-base": (12, 768, 12),
        "roberta-small": (6, 512, 8),
        "roberta-tiny": (2, 32, 2),
    }
)
#: Of the tokens that are to be told, these shares are hidden, or replaced by a random token; the rest is left.
HIDDEN, REPLACED = 0.8, 0.1


def hidden_count(length: int, rate: float = 0.15) -> int:
    """How many of so many tokens are to be told: the same number in every window, at least 1.

    >>> hidden_count(126)
    19
    """
    return max(1, round(rate * length))


def hide(tokens: Tensor, uniforms: Tensor, vocabulary: Vocabulary | int, rate: float = 0.15) -> Tensor:
    """Three rows of each window of n tokens, with begin and end around it: ``[..., 3, n + 2]``.

    The rows are the tokens with some hidden, the tokens, and 1 where one is to be told. Of ``n + 2 k`` uniforms, the
    first n choose the k places (the largest are taken), the next k what is done there, the last k by which tokens.

    Args:
        tokens: ``[..., n]``.
        uniforms: ``[..., n + 2 k]`` with k of `hidden_count`.
        vocabulary: of the tokens, or how many ordinary ones it has.
        rate: the share of tokens that are to be told; RoBERTa's is .15, and the paper does not say.
    """
    size = vocabulary if isinstance(vocabulary, int) else vocabulary.size
    n = tokens.shape[-1]
    k = hidden_count(n, rate)
    places = uniforms[..., :n].topk(k, -1).indices
    what, which = uniforms[..., n : n + k], uniforms[..., n + k : n + 2 * k]
    own = tokens.gather(-1, places)
    other = (which * size).long().clamp(max=size - 1)
    mask = torch.full_like(own, size + SPECIAL.index("mask"))
    put = torch.where(what < HIDDEN, mask, torch.where(what < HIDDEN + REPLACED, other, own))
    told = torch.zeros_like(tokens).scatter(-1, places, torch.ones_like(own))
    rows = torch.stack([tokens.scatter(-1, places, put), tokens, told], -2)
    begin = torch.full_like(rows[..., :1], size + SPECIAL.index("begin"))
    end = torch.full_like(rows[..., :1], size + SPECIAL.index("end"))
    edge = torch.ones_like(rows[..., :1]).cumsum(-2) < 3  # begin and end are never to be told
    return torch.cat([begin * edge, rows, end * edge], -1)


def hash_uniforms(tokens: Tensor, draws: int) -> Tensor:
    """Numbers in [0, 1) that depend on the tokens only: ``[..., draws]``, spread like random ones."""
    low = 0xFFFFFFFF
    places = torch.arange(1, tokens.shape[-1] + 1, device=tokens.device)
    key = _mixed((tokens * 0x9E3779B1 + places * 0x85EBCA77) & low).sum(-1, keepdim=True) & low
    numbers = torch.arange(draws, device=tokens.device) * 0x27D4EB2F
    return (_mixed(_mixed(key) ^ _mixed(numbers & low)) >> 8).float() / 2**24


def _mixed(x: Tensor) -> Tensor:
    """The last part of MurmurHash3, on 32 bits."""
    low = 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & low
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & low
    return x ^ (x >> 16)


def hide_always_alike(tokens: Tensor, vocabulary: int, rate: float) -> Tensor:
    """`hide` by `hash_uniforms`: for measurements."""
    n = tokens.shape[-1]
    return hide(tokens, hash_uniforms(tokens, n + 2 * hidden_count(n, rate)), vocabulary, rate)


def hide_anew(rows: Tensor, uniforms: Tensor, vocabulary: int, rate: float) -> Tensor:
    """`hide` other tokens of the same windows: for training."""
    return hide(rows[..., 1, 1:-1], uniforms, vocabulary, rate)


class Encoder(nn.Module):
    """RoBERTa's net of ``transformers`` with its head: tokens [n, length] to what the last layer gives.

    Args:
        config: a ``RobertaConfig``, or a ``RobertaPreLayerNormConfig`` for a net with LayerNorm before each part.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.first = config.model_type == "roberta-prelayernorm"
        if self.first:
            library = _transformers("roberta_prelayernorm.modeling_roberta_prelayernorm")
            self.net = library.RobertaPreLayerNormForMaskedLM(config)
        else:
            self.net = _transformers("roberta.modeling_roberta").RobertaForMaskedLM(config)

    def forward(self, tokens: Tensor, there: Tensor | None = None) -> Tensor:
        """Features [n, length, width]; ``there`` is False for padding."""
        body = self.net.base_model
        places = torch.arange(tokens.shape[-1], device=tokens.device)[None]
        hidden = body.embeddings(input_ids=tokens, position_ids=places)
        mask = None if there is None else there[:, None, None, :].expand(-1, 1, tokens.shape[-1], -1)
        for layer in body.encoder.layer:
            hidden = _first(layer(hidden, mask))
        out: Tensor = body.LayerNorm(hidden) if self.first else hidden
        return out

    def extra_repr(self) -> str:
        """What the layers do not show."""
        return f"heads={self.net.config.num_attention_heads}, first={self.first}"


class MaskedLM(nn.Module):
    """A masked language model: rows of `hide` [n, 3, length] to ``[n, k, 2]``, loss and 1 or 0 at each place to tell.

    Args:
        encoder: the net.
        told: how many places there are in each window.
    """

    def __init__(self, encoder: Encoder, told: int) -> None:
        super().__init__()
        self.encoder, self.told = encoder, told

    def forward(self, rows: Tensor) -> Tensor:
        """Losses and whether the largest output is right."""
        seen, tokens, told = rows.unbind(-2)
        places = told.topk(self.told, -1).indices
        hidden = self.encoder(seen)
        hidden = hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))
        logits = self.encoder.net.lm_head(hidden)
        targets = tokens.gather(-1, places)
        losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none").view(targets.shape)
        return torch.stack([losses, (logits.argmax(-1) == targets).to(losses.dtype)], -1)

    def extra_repr(self) -> str:
        """What the layers do not show."""
        return f"told={self.told}"


def masked_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of each window of a `MaskedLM`: its log-perplexity."""
    return outputs[..., 0].mean(-1)


def masked_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of hidden tokens of each window that a `MaskedLM` tells."""
    return outputs[..., 1].mean(-1)


def encoder_net(
    vocabulary: int, model: str = "roberta-large", length: int = 128, dropout: float = 0.1, prenorm: bool = True
) -> Encoder:
    """An encoder of `ROBERTAS`, randomly initialised, for so many tokens (those of `SPECIAL` included)."""
    if model not in ROBERTAS:
        raise ValueError(f"model must be one of {', '.join(ROBERTAS)}, got {model!r}")
    layers, width, heads = ROBERTAS[model]
    library, name = (
        ("roberta_prelayernorm.configuration_roberta_prelayernorm", "RobertaPreLayerNormConfig")
        if prenorm
        else ("roberta.configuration_roberta", "RobertaConfig")
    )
    config = getattr(_transformers(library), name)(
        vocab_size=_filled(vocabulary), max_position_embeddings=length, num_hidden_layers=layers, hidden_size=width,
        intermediate_size=4 * width, num_attention_heads=heads, hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout, type_vocab_size=1, pad_token_id=None, bos_token_id=None,
        eos_token_id=None, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    return Encoder(config)


def roberta_net(
    vocabulary: int,
    model: str = "roberta-large",
    length: int = 128,
    dropout: float = 0.1,
    prenorm: bool = True,
    rate: float = 0.15,
) -> nn.Module:
    """A `MaskedLM` of `ROBERTAS`."""
    return MaskedLM(encoder_net(vocabulary, model, length, dropout, prenorm), hidden_count(length - 2, rate))


def roberta(
    tokens: Tokens,
    *,
    model: str = "roberta-large",
    length: int = 128,
    split: str = "paper",
    epochs: float | None = None,
    batch_size: int = 1024,
    recipe: str = "roberta",
    eps: float | None = None,
    eta: float | None = None,
    dropout: float = 0.1,
    rate: float = 0.15,
    prenorm: bool = True,
    reference: int | None = None,
) -> Task:
    """A masked language model on a text, as in the paper: RoBERTa-large, sequences of 128, Adam (`RECIPES`).

    Args:
        tokens: of the text (`rootscale.lab.text.tokenise`).
        model: one of `ROBERTAS`.
        length: of a sequence, begin and end included.
        split: as for `windows`.
        epochs: the length of the run; None is the paper's number of sequences, 94 million.
        batch_size: to which the paper's hyperparameters at 1024 are converted.
        recipe: ``roberta``, or ``roberta-svag`` for the paper's SVAG experiment.
        eps, eta: others than the paper's, at batch size 1024.
        dropout: of activations and attention.
        rate: the share of tokens that are to be told.
        prenorm: with LayerNorm before each part of a layer, as in the code that the paper used; after it, 24 layers
            hardly train at its learning rate.
        reference: as for `recipe_plan`.
    """
    if length < 4:
        raise ValueError(f"sequences of a masked model must have at least 4 tokens, got {length}")
    train, test = windows(tokens, length - 2, split, ahead=0)
    samples = _samples(len(train), epochs, batch_size)
    size, n = tokens.vocabulary.size, length - 2
    return Task(
        f"{recipe}-{model}-{'' if prenorm else 'postnorm-'}{tokens.name}-{length}-{split}",
        recipe_plan(recipe, batch_size=batch_size, samples=samples, eps=eps, eta=eta, reference=reference),
        partial(roberta_net, tokens.vocabulary.total, model, length, dropout, prenorm, rate),
        masked_loss,
        train,
        test,
        {"accuracy": masked_accuracy},
        prepare=partial(hide_always_alike, vocabulary=size, rate=rate),
        augment=partial(hide_anew, vocabulary=size, rate=rate),
        draws=n + 2 * hidden_count(n, rate),
    )


# -- GLUE ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Glue:
    """A task of GLUE: how its tsv files are read, how it is judged, and the paper's grid for it.

    Args:
        texts: columns of the sentence, or of two.
        label: its column.
        labels: the classes as they are written; none for a number to be told.
        metric: one of `SCORES`.
        header: whether the first line names the columns.
        dev: the name of the file to test with.
        batch_sizes, etas, epochs: of the grid, from the appendix's table.
    """

    texts: tuple[int, ...]
    label: int
    labels: tuple[str, ...]
    metric: str
    header: bool = True
    dev: str = "dev"
    batch_sizes: tuple[int, ...] = (16, 32)
    etas: tuple[float, ...] = (1e-5, 3e-5, 5e-5, 8e-5)
    epochs: tuple[int, ...] = (3, 5, 10)

    def grid(self) -> list[Point]:
        """All points of it."""
        return [Point(*point) for point in product(self.batch_sizes, self.etas, self.epochs)]


@dataclass(frozen=True)
class Point:
    """Of the grid: batch size, peak learning rate and epochs of a fine-tuning."""

    batch_size: int
    eta: float
    epochs: int


_LARGE: dict[str, Any] = {"batch_sizes": (32,), "etas": (5e-5, 8e-5), "epochs": (3, 5)}
_ENTAILED = ("not_entailment", "entailment")
#: The tasks of the paper's table, in its order.
GLUE: Mapping[str, Glue] = MappingProxyType(
    {
        "CoLA": Glue((3,), 1, ("0", "1"), "Matthews correlation", header=False),
        "SST-2": Glue((0,), 1, ("0", "1"), "accuracy"),
        "MRPC": Glue((3, 4), 0, ("0", "1"), "F1"),
        "STS-B": Glue((7, 8), 9, (), "Spearman correlation"),
        "QQP": Glue((3, 4), 5, ("0", "1"), "F1", **_LARGE),
        "MNLI": Glue((8, 9), -1, ("contradiction", "entailment", "neutral"), "accuracy", dev="dev_matched", **_LARGE),
        "QNLI": Glue((1, 2), 3, _ENTAILED, "accuracy", **_LARGE),
        "RTE": Glue((1, 2), 3, _ENTAILED, "accuracy"),
    }
)


def read_glue(
    folder: str | os.PathLike[str], name: str, split: str = "train"
) -> tuple[list[tuple[str, ...]], list[float]]:
    """Sentences (or pairs) and labels of a task of GLUE, from its tsv file: plain, .xz or .gz.

    Args:
        folder: that holds ``glue/NAME``, or ``NAME``, or the files.
        name: one of `GLUE`.
        split: ``train`` or ``dev``.
    """
    if name not in GLUE:
        raise ValueError(f"a task of GLUE must be one of {', '.join(GLUE)}, got {name!r}")
    if split not in ("train", "dev"):
        raise ValueError(f"split must be train or dev, got {split!r}")
    task, root = GLUE[name], Path(folder).expanduser()
    file = f"{task.dev if split == 'dev' else split}.tsv"
    places = [root / "glue" / name, root / name, *([root] if root.name == name else [])]
    path = next((found for place in places if (found := text.existing(place / file))), None)
    if path is None:
        raise ValueError(f"there is no {file} (plain, .xz or .gz) of {name} in {', '.join(map(str, places))}")
    lines = [line.rstrip("\r\n").split("\t") for line in text.read_lines([path])]
    lines = [line for line in (lines[1:] if task.header else lines) if line != [""]]
    needed = max(*task.texts, task.label) + 1
    whole_lines = [line for line in lines if len(line) >= needed]
    if not whole_lines or len(whole_lines) < 0.99 * len(lines):  # a few of QQP's are broken as published
        raise ValueError(
            f"{path} must have lines of at least {needed} columns with tabs between, got {len(whole_lines)} "
            f"of {len(lines)}"
        )
    try:
        told = [line[task.label] for line in whole_lines]
        labels = [float(task.labels.index(label) if task.labels else label) for label in told]
    except ValueError:
        wanted = f"one of {', '.join(task.labels)}" if task.labels else "numbers"
        raise ValueError(f"labels of {path} (column {task.label}) must be {wanted}") from None
    return [tuple(line[column] for column in task.texts) for line in whole_lines], labels


def encode_texts(texts: Sequence[tuple[str, ...]], vocabulary: Vocabulary, length: int) -> Tensor:
    """Tokens of sentences, ``begin A end``, or of pairs, ``begin A end end B end``, filled up with padding.

    What is too long is cut at its end, the longer sentence of a pair first.
    """
    begin, end, pad = (vocabulary.special(name) for name in ("begin", "end", "pad"))
    out = torch.full((len(texts), length), pad)
    for row, sentences in zip(out, texts, strict=True):
        parts = [vocabulary.encode(sentence) for sentence in sentences]
        room = length - 2 * len(parts)
        while sum(map(len, parts)) > room:
            longest = max(parts, key=len)
            longest.pop()
        numbers = [begin]
        for i, part in enumerate(parts):
            numbers += [*([end] if i else []), *part, end]
        row[: len(numbers)] = torch.tensor(numbers)
    return out


class Classifier(nn.Module):
    """An encoder with RoBERTa's head on the first token: tokens [n, length] to outputs [n, classes].

    Args:
        encoder: the net; what only its head for hidden tokens uses is fixed.
        classes: outputs; 1 for a number.
        pad: the token that is not there.
        dropout: before and in the head.
    """

    def __init__(self, encoder: Encoder, classes: int, pad: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.encoder, self.pad = encoder, pad
        head = encoder.net.lm_head
        for fixed in (head.dense, head.layer_norm):
            fixed.requires_grad_(False)
        head.bias.requires_grad_(False)
        width = encoder.net.config.hidden_size
        self.head = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, classes)
        )
        for layer in self.head:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=encoder.net.config.initializer_range)
                nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Outputs of each class."""
        outputs: Tensor = self.head(self.encoder(tokens, tokens != self.pad)[:, 0])
        return outputs


def classifier_net(
    vocabulary: int,
    model: str,
    length: int,
    classes: int,
    pad: int,
    dropout: float,
    prenorm: bool,
    pretrained: str | None,
) -> nn.Module:
    """A `Classifier`, with the encoder that `pretrain` stored."""
    encoder = encoder_net(vocabulary, model, length, dropout, prenorm)
    if pretrained is not None:
        state = torch.load(pretrained, map_location="cpu", weights_only=True)
        encoder.load_state_dict(
            {name.removeprefix("encoder."): value for name, value in state.items() if name.startswith("encoder.")}
        )
    return Classifier(encoder, classes, pad, dropout)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of each sample's only output."""
    return (outputs[..., 0] - targets).square()


def _matthews(told: Any, true: Any) -> float:
    return float(_library("sklearn.metrics").matthews_corrcoef(true, told))


def _f1(told: Any, true: Any) -> float:
    return float(_library("sklearn.metrics").f1_score(true, told, zero_division=0.0))


def _accuracy(told: Any, true: Any) -> float:
    return float(_library("sklearn.metrics").accuracy_score(true, told))


def _spearman(told: Any, true: Any) -> float:
    if len(set(told.tolist())) < 2:  # it is not defined, and nothing has been learned
        return 0.0
    return float(_library("scipy.stats").spearmanr(told, true).statistic)


#: How answers are judged: functions of what was told (class or number) and what is true.
SCORES: Mapping[str, Callable[[Any, Any], float]] = MappingProxyType(
    {"Matthews correlation": _matthews, "F1": _f1, "accuracy": _accuracy, "Spearman correlation": _spearman}
)


@dataclass(frozen=True, eq=False)
class Score:
    """One number for a model's answers to all of some data; a function of `Task`.

    Args:
        metric: one of `SCORES`.
        data: inputs and targets.
        at_once: samples through the model at once.
    """

    metric: str
    data: Tensors
    at_once: int = 256

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> float:
        """Of this model."""
        device = next(model.parameters()).device
        starts = range(0, len(self.data), self.at_once)
        parts = [self.data.inputs[start : start + self.at_once].to(device) for start in starts]
        outputs = torch.cat([model(part).float().cpu() for part in parts])
        if not torch.isfinite(outputs).all():
            return float("nan")
        told = outputs[:, 0] if outputs.shape[1] == 1 else outputs.argmax(1)
        return SCORES[self.metric](told.numpy(), self.data.targets.numpy())


def glue(
    name: str,
    folder: str | os.PathLike[str],
    vocabulary: Vocabulary,
    *,
    point: Point,
    model: str = "roberta-large",
    pretrained: str | os.PathLike[str] | None = None,
    length: int = 128,
    dropout: float = 0.1,
    prenorm: bool = True,
) -> Task:
    """Fine-tuning on a task of GLUE by the appendix's table: betas .9 and .98, eps 1e-6, weight decay .1, dropout .1.

    The learning rate rises linearly in the first 6 % of the steps and then falls linearly to 0. The task's function is
    the metric of GLUE on the dev data.

    Args:
        name: one of `GLUE`.
        folder: as for `read_glue`.
        vocabulary: of the pre-training.
        point: of the grid (`Glue.grid`).
        model, length, dropout, prenorm: of the encoder, as in pre-training.
        pretrained: file of `pretrain`; None is a random encoder.
    """
    train, dev = _glue_data(name, os.fspath(folder), vocabulary, length)
    task = GLUE[name]
    steps = point.epochs * max(1, len(train) // point.batch_size)
    plan = Plan(
        hparams.AdamW(point.eta, 0.9, 0.98, 1e-6, weight_decay=0.1),
        BatchSize(point.batch_size),
        steps=steps,
        schedule=Schedule("linear", warmup=Fraction(6 * steps, 100)),
    )
    source = None if pretrained is None else os.fspath(pretrained)
    # The sweep sees a model's shape but not its values: they are part of the name.
    values = "random" if source is None else hashlib.sha256(Path(source).read_bytes()).hexdigest()[:10]
    classes, pad = len(task.labels) or 1, vocabulary.special("pad")
    return Task(
        f"glue-{name}-{model}-{values}",
        plan,
        partial(classifier_net, vocabulary.total, model, length, classes, pad, dropout, prenorm, source),
        cross_entropy if task.labels else squared_error,
        train,
        dev,
        {"accuracy": accuracy} if task.labels else {},
        {task.metric: Score(task.metric, dev)},
    )


@lru_cache(maxsize=16)
def _glue_data(name: str, folder: str, vocabulary: Vocabulary, length: int) -> tuple[Tensors, Tensors]:
    """Of train and dev; a grid asks for them often."""
    parts = []
    for split in ("train", "dev"):
        texts, labels = read_glue(folder, name, split)
        targets = torch.tensor(labels)
        inputs = encode_texts(texts, vocabulary, length)
        parts.append(Tensors(inputs, targets.long() if GLUE[name].labels else targets))
    return parts[0], parts[1]


def pretrain(
    task: Task,
    variant: Variant,
    seed: int,
    settings: Settings,
    path: str | os.PathLike[str],
    *,
    stop: Callable[[], bool] = lambda: False,
    every: float = 60.0,
) -> bool:
    """Train a model and store its parameters in a file; what was begun is gone on with.

    Args:
        task, variant, seed, settings: of the run (`rootscale.lab.Run`).
        path: of the file; beside it are a checkpoint while it runs, and its trajectory (.npz) at the end.
        stop: asked after every step; if it says so, a checkpoint is written and the rest is left for another time.
        every: seconds between checkpoints.

    Returns:
        Whether the file is there.
    """
    path = Path(path)
    if path.exists():
        return True
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = path.with_suffix(".checkpoint")
    run = Run(task, variant, [seed], settings)
    if checkpoint.exists():
        run.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True))
    saved = time.monotonic()
    with torch.random.fork_rng():
        while not run.done:
            run.advance()
            stopping = stop()
            if stopping or time.monotonic() - saved > every:
                with whole(checkpoint) as temporary:
                    torch.save(run.state_dict(), temporary)
                saved = time.monotonic()
            if stopping:
                return False
    if None not in run.diverged:
        raise ValueError(f"the run {task.name} at {variant.label(task.plan)} diverged: there is no model to go on with")
    run.trajectory().save(path.with_suffix(".npz"))
    with whole(path) as temporary:
        torch.save({name: value.cpu() for name, value in run.learner.replica(0).state_dict().items()}, temporary)
    checkpoint.unlink(missing_ok=True)
    return True


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(f"the scores of GLUE need {name}; pip install 'rootscale[lab]'") from None


def _samples(windows: int, epochs: float | None, batch_size: int) -> int | None:
    """Sequences of a run, a whole number of steps."""
    if epochs is None:
        return None
    if epochs <= 0:
        raise ValueError(f"epochs must be positive, got {epochs}")
    return max(1, int(epochs * windows) // batch_size) * batch_size


def _first(out: Any) -> Tensor:
    """What a layer gives: a tensor, or in some versions of the library the first of several."""
    found: Tensor = out if isinstance(out, Tensor) else out[0]
    return found


def _filled(vocabulary: int) -> int:
    return vocabulary if vocabulary <= 1024 else -(-vocabulary // 64) * 64


def _transformers(module: str) -> Any:
    try:
        return importlib.import_module(f"transformers.models.{module}")
    except ImportError as error:
        raise ValueError(
            f"language models need transformers ({error}); pip install 'rootscale[transformers]'"
        ) from None
