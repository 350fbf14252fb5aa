"""Ranges of settings: types that the recipe parser checks."""

from typing import Annotated

from annotated_types import Ge, Gt, Lt

Count = Annotated[int, Ge(1)]
Share = Annotated[float, Ge(0), Lt(1)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
