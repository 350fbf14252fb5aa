"""Ranges of settings: types that the recipe parser checks."""

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
Rows = Annotated[int, Ge(1), Le(1_000_000)]  # of a batch
Tokens = Annotated[int, Ge(1), Le(100_000_000)]  # of a batch
Length = Annotated[int, Ge(8)]  # of a row: special tokens of a pair, and some of each text
Seed = Annotated[int, Ge(0), Lt(2**63)]  # what torch takes
Share = Annotated[float, Ge(0), Lt(1)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
