"""Predicts which mode, split and tensor parallelism serve a load best, without using a GPU."""
