"""Answers that are not text: decisions, scores of label tokens."""
