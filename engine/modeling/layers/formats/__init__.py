"""Formats of weights with fewer bits than activations: one linear method each, and which one a model has."""
