"""Readers of corpus files, one module per format."""
