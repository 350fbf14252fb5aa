"""Analyse a trained model: its language vectors, donor weights, weights by site, and the hypernetwork's capacity.

Functions take plain arguments (a model, matrices, a function that scores), for use in notebooks as well as by
``polyloom probe``, and return plain data that JSON can hold.
"""
