"""Text on disk as numbers: corpora in their published layouts, cut into words, bytes or pieces of a trained BPE.

Nothing is downloaded.

    corpora         files of text
    vocabularies    tokens
    tokens          a text as numbers, which are kept beside it
"""

from rootscale.paper.text.corpora import Corpus, corpus
from rootscale.paper.text.tokens import CACHE, Tokens, chain, from_text, tokenise
from rootscale.paper.text.vocabularies import Vocabulary

__all__ = ["CACHE", "Corpus", "Tokens", "Vocabulary", "chain", "corpus", "from_text", "tokenise"]
