"""Language models as tasks: GPT and RoBERTa as in the paper, on any text (`rootscale.paper.text`).

A sample is a window of tokens, and its loss the mean over its tokens, so that the losses that the engine measures are
the train and validation log-perplexity. The nets are those of ``transformers`` (extra ``transformers``), randomly
initialised.

    text_windows         a text as samples
    recipes              the paper's hyperparameters
    gpt_task             GPT
    masking              what a masked language model has to tell
    roberta_task         RoBERTa
    glue_data            GLUE's files and grids
    glue_scores          its scores
    glue_task            fine-tuning on it
    transformers_nets    what the nets have in common
"""

from rootscale.paper.language.glue_data import GLUE, Glue, Point, read_glue
from rootscale.paper.language.glue_scores import Score
from rootscale.paper.language.glue_task import Classifier, glue
from rootscale.paper.language.gpt_task import GPT, GPTS, gpt, gpt_net, token_accuracy, token_loss
from rootscale.paper.language.masking import hash_uniforms, hidden_count, hide
from rootscale.paper.language.recipes import RECIPES, Recipe, micro_batch, recipe_plan
from rootscale.paper.language.roberta_task import (
    ROBERTAS,
    Encoder,
    MaskedLM,
    encoder_net,
    masked_accuracy,
    masked_loss,
    roberta,
    roberta_net,
)
from rootscale.paper.language.text_windows import SPLITS, Windows, windows

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
    "read_glue",
    "recipe_plan",
    "roberta",
    "roberta_net",
    "token_accuracy",
    "token_loss",
    "windows",
]
