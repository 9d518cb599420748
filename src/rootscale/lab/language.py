"""Language models as tasks: GPT as in the paper, on any text (`rootscale.lab.text`).

A sample is a window of tokens, and its loss the mean over its tokens, so that the losses that the engine measures are
the train and validation log-perplexity. The nets are those of ``transformers`` (extra ``transformers``), randomly
initialised; their layers are called one by one, since the library's own ``forward`` looks at the values of masks, which
cannot be part of a CUDA graph.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rootscale import hparams
from rootscale.changes import ScalingWarning
from rootscale.lab.task import Task
from rootscale.lab.text import Tokens
from rootscale.plan import BatchSize, Plan
from rootscale.schedule import Schedule

__all__ = [
    "GPT",
    "GPTS",
    "RECIPES",
    "SPLITS",
    "Recipe",
    "Windows",
    "gpt",
    "gpt_net",
    "micro_batch",
    "recipe_plan",
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
