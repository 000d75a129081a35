"""Layers with a recurrent state: the state's memory and the operations on it."""
