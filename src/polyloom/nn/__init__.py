"""Functions and small modules. Functions take one set of weights for all rows, or one set per row."""
