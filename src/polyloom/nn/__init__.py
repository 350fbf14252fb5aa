"""Pure functions and small modules. Every function takes one set of weights or one per row."""
