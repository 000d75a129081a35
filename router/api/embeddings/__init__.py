"""Vectors of prompts: embeddings, scores of pairs, classes and rewards."""
