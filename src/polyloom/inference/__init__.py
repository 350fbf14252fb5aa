"""Prediction with a trained model: the predictor, its weight cache, streams."""
