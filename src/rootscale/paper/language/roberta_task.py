"""RoBERTa, a masked language model: the net, its loss (the log-perplexity of what is hidden), and the task.

A masked language model hides other tokens every time it sees a window. A `Task` may change inputs only, by ``augment``,
and its loss sees outputs and targets only; so the inputs are three rows, ``[3, length]``: the tokens with some hidden,
the tokens themselves, and which ones are to be told. The net computes logits where something is to be told (15 % of
the places, which saves most of the memory) and gives ``[loss, right or wrong]`` for each of those places. ``prepare``
hides tokens by a hash of the window, so that runs are measured on the same places every time; ``augment`` hides others
in training, by the engine's uniforms.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rootscale.lab.task import Task
from rootscale.paper.language.masking import hidden_count, hide_always_alike, hide_anew
from rootscale.paper.language.recipes import recipe_plan, whole_steps
from rootscale.paper.language.text_windows import windows
from rootscale.paper.language.transformers_nets import filled, first, transformers_models
from rootscale.paper.text import Tokens

__all__ = ["ROBERTAS", "Encoder", "MaskedLM", "encoder_net", "masked_accuracy", "masked_loss", "roberta", "roberta_net"]

#: Layers, width and heads; ``roberta-large`` is the paper's.
ROBERTAS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        "roberta-large": (24, 1024, 16),
        "roberta-base": (12, 768, 12),
        "roberta-small": (6, 512, 8),
        "roberta-tiny": (2, 32, 2),
    }
)


class Encoder(nn.Module):
    """RoBERTa's net of ``transformers`` with its head: tokens [n, length] to what the last layer gives.

    Args:
        config: a ``RobertaConfig``, or a ``RobertaPreLayerNormConfig`` for a net with LayerNorm before each part.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.first = config.model_type == "roberta-prelayernorm"
        if self.first:
            library = transformers_models("roberta_prelayernorm.modeling_roberta_prelayernorm")
            self.net = library.RobertaPreLayerNormForMaskedLM(config)
        else:
            self.net = transformers_models("roberta.modeling_roberta").RobertaForMaskedLM(config)

    def forward(self, tokens: Tensor, there: Tensor | None = None) -> Tensor:
        """Features [n, length, width]; ``there`` is False for padding."""
        body = self.net.base_model
        places = torch.arange(tokens.shape[-1], device=tokens.device)[None]
        hidden = body.embeddings(input_ids=tokens, position_ids=places)
        mask = None if there is None else there[:, None, None, :].expand(-1, 1, tokens.shape[-1], -1)
        for layer in body.encoder.layer:
            hidden = first(layer(hidden, mask))
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
    config = getattr(transformers_models(library), name)(
        vocab_size=filled(vocabulary), max_position_embeddings=length, num_hidden_layers=layers, hidden_size=width,
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
        tokens: of the text (`rootscale.paper.text.tokenise`).
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
    samples = whole_steps(len(train), epochs, batch_size)
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
