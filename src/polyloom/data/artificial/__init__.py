"""An artificial family of languages: related, contradictory, annotated and translated, without any file."""

from polyloom.data.artificial.corpus import LICENCE, ArtificialCorpus
from polyloom.data.artificial.family import Family

__all__ = ["LICENCE", "ArtificialCorpus", "Family"]
