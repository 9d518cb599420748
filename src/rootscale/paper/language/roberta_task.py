"""RoBERTa, a masked language model: the net, its loss (the log-perplexity of what is hidden), and the task.

A masked language model hides other tokens every time it sees a window. A `Task` may change inputs only, by ``augment``,
and its loss sees outputs and targets only; so the inputs are three rows, ``[3, length]``: the tokens with some hidden,
the tokens themselves, and which ones are to be predicted. The net computes logits where something is predicted (15 % of
the places, which saves most of the memory) and gives ``[loss, right or wrong]`` for each of those places. ``prepare``
hides tokens by a hash of the window, so that runs are measured on the same places every time; ``augment`` hides others
in training, by the engine's uniforms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rootscale.lab.task import Task
from rootscale.paper.language.masking import hidden_count, hide_always_alike, hide_anew
from rootscale.paper.language.recipes import Pretraining
from rootscale.paper.language.text_windows import windows
from rootscale.paper.language.transformers_nets import filled, first, transformers_models
from rootscale.paper.text.tokens import Tokens

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
    """Return an encoder of `ROBERTAS`, randomly initialised, for so many tokens (those of `SPECIAL` included).

    LayerNorm stands before each part of a layer, as in the code that the paper used; after it, as in the original
    RoBERTa, 24 layers hardly train at its learning rate.
    """
    if model not in ROBERTAS:
        raise ValueError(f"model must be one of {', '.join(ROBERTAS)}, got {model!r}")
    layers, width, heads = ROBERTAS[model]
    library = transformers_models("roberta_prelayernorm.configuration_roberta_prelayernorm")
    config = library.RobertaPreLayerNormConfig(
        vocab_size=filled(vocabulary), max_position_embeddings=length, num_hidden_layers=layers, hidden_size=width,
        intermediate_size=4 * width, num_attention_heads=heads, hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout, type_vocab_size=1, pad_token_id=None, bos_token_id=None,
        eos_token_id=None, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    return Encoder(config)


def roberta_net(
    vocabulary: int, model: str = "roberta-large", length: int = 128, dropout: float = 0.1, rate: float = 0.15
) -> nn.Module:
    """Return a `MaskedLM` of `ROBERTAS`."""
    return MaskedLM(encoder_net(vocabulary, model, length, dropout), hidden_count(length - 2, rate))


def roberta(
    tokens: Tokens,
    *,
    model: str = "roberta-large",
    length: int = 128,
    split: str = "paper",
    dropout: float = 0.1,
    rate: float = 0.15,
    training: Pretraining = Pretraining(),  # noqa: B008 (frozen)
) -> Task:
    """Return a masked language model on a text, as in the paper: RoBERTa-large, sequences of 128, Adam (`RECIPES`).

    Args:
        tokens: of the text (`rootscale.paper.text.tokenise`).
        model: one of `ROBERTAS`.
        length: of a sequence, begin and end included.
        split: as for `windows`.
        dropout: of activations and attention.
        rate: the share of tokens that are to be predicted.
        training: how long, at which batch size, and by which recipe: ``roberta``, or ``roberta-svag`` for the paper's
            SVAG experiment.
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
        prepare=partial(hide_always_alike, vocabulary=size, rate=rate),
        augment=partial(hide_anew, vocabulary=size, rate=rate),
        draws=n + 2 * hidden_count(n, rate),
    )
