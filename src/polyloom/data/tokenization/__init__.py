"""Tokenizers, vocabularies, words and sentences."""
