"""Generate a synthetic family of languages with annotated and translated corpora, without any file."""

from polyloom.data.synthetic.corpus import LICENCE, SyntheticCorpus
from polyloom.data.synthetic.family import Family

__all__ = ["LICENCE", "Family", "SyntheticCorpus"]
