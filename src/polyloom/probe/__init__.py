"""Looking into a trained model: what it knows of languages, how much that matters, where it lies, how full it is.

Functions take plain arguments (a model, matrices, a function that scores), so that they serve notebooks as well as
``polyloom probe``. What they return is what JSON holds.
"""
