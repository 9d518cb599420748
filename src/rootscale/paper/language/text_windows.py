"""Windows of a text as data: a sample is so many tokens, and its targets are the tokens one ahead or themselves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rootscale.paper.text.tokens import Tokens

__all__ = ["SPLITS", "Windows", "windows"]

#: The paper's share of training windows, and the seed of the split.
SHARE, SPLIT_SEED = 0.9, 0
#: How a text is divided: windows at random, 9:1, as in the paper, or by the parts that the corpus has.
SPLITS = ("paper", "own")


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
