"""Which tokens of a window a masked language model has to tell, and what stands in their place."""

from __future__ import annotations

import torch
from torch import Tensor

from rootscale.paper.text.vocabularies import SPECIAL, Vocabulary

__all__ = ["hash_uniforms", "hidden_count", "hide", "hide_always_alike", "hide_anew"]

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
    key = _mixed((tokens * 0x9E3779B1 + _places(tokens) * 0x85EBCA77) & low).sum(-1, keepdim=True) & low
    numbers = (_places(key.expand(*key.shape[:-1], draws)) - 1) * 0x27D4EB2F
    return (_mixed(_mixed(key) ^ _mixed(numbers & low)) >> 8).float() / 2**24


def _places(numbers: Tensor) -> Tensor:
    """1, 2, 3, ... along the last axis, counted from numbers that are not negative.

    ``torch.compile`` would compute with those of ``arange`` in 32 bits on a GPU, which are too few for the factors.
    """
    return (numbers >= 0).long().cumsum(-1)


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
