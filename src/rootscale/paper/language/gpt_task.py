"""GPT: the net, its loss (the log-perplexity), and the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rootscale.lab.task import Task
from rootscale.paper.language.recipes import Pretraining
from rootscale.paper.language.text_windows import windows
from rootscale.paper.language.transformers_nets import filled, first, transformers_models
from rootscale.paper.text.tokens import Tokens

__all__ = ["GPT", "GPTS", "gpt", "gpt_net", "token_accuracy", "token_loss"]

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
        self.net = transformers_models("gpt2.modeling_gpt2").GPT2LMHeadModel(config)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the token after each."""
        body = self.net.transformer
        places = torch.arange(tokens.shape[-1], device=tokens.device)
        hidden = body.drop(body.wte(tokens) + body.wpe(places))
        for block in body.h:
            hidden = first(block(hidden))  # without a mask, attention is causal
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
    config = transformers_models("gpt2.configuration_gpt2").GPT2Config(
        vocab_size=filled(vocabulary), n_positions=length, n_layer=layers, n_embd=width, n_inner=4 * width,
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
    dropout: float = 0.1,
    training: Pretraining = Pretraining(),  # noqa: B008 (frozen)
) -> Task:
    """Return GPT on a text, as in the paper: 12 layers, sequences of 128 (64 for SVAG), Adam (`RECIPES`), dropout .1.

    Args:
        tokens: of the text (`rootscale.paper.text.tokenise`).
        model: one of `GPTS`, or a function that makes a net from tokens to logits.
        length: of a sequence.
        split: as for `windows`.
        dropout: of activations and attention.
        training: how long, at which batch size, and by which recipe: ``gpt``, or ``gpt-svag`` for the paper's SVAG
            experiment.
    """
    train, test = windows(tokens, length, split)
    training = replace(training, recipe=training.recipe or "gpt")
    make: Callable[[], nn.Module] = (
        partial(gpt_net, tokens.vocabulary.size, model, length, dropout, dropout) if isinstance(model, str) else model
    )
    name = f"{training.recipe}-{model if isinstance(model, str) else 'own'}-{tokens.name}-{length}-{split}"
    plan = training.plan(len(train))
    return Task(name, plan, make, token_loss, train, test, {"accuracy": token_accuracy})


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over the tokens of each sample of the cross-entropy: its log-perplexity."""
    losses = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(targets.shape).mean(-1)


def token_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of each sample's tokens that have the largest output."""
    return (outputs.argmax(-1) == targets).float().mean(-1)
