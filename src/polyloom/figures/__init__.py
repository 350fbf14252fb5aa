"""Figures: every figure of the project, drawn once, with one palette. Commands write files, the report inline SVG."""
