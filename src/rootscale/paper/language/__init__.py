"""Language models as tasks: GPT and RoBERTa as in the paper, on any text (`rootscale.paper.text`).

A sample is a window of tokens, and its loss the mean over its tokens, so that the losses that the lab measures are the
train and validation log-perplexity. The nets are those of ``transformers`` (extra ``transformers``), randomly
initialised.

    text_windows         a text as samples
    recipes              the paper's hyperparameters
    gpt_task             GPT
    masking              what a masked language model has to predict
    roberta_task         RoBERTa
    glue_data            GLUE's files and grids
    glue_scores          its scores
    glue_task            fine-tuning on it
    transformers_nets    what the nets have in common
"""

from rootscale.paper.language.glue_data import GLUE, Point, read_glue
from rootscale.paper.language.glue_task import glue
from rootscale.paper.language.gpt_task import GPTS, gpt
from rootscale.paper.language.recipes import Pretraining, micro_batch, recipe_plan
from rootscale.paper.language.roberta_task import ROBERTAS, roberta
from rootscale.paper.language.text_windows import windows

__all__ = [
    "GLUE", "GPTS", "ROBERTAS", "Point", "Pretraining", "glue", "gpt", "micro_batch", "read_glue", "recipe_plan",
    "roberta", "windows",
]  # fmt: skip
