"""A cluster that is only arithmetic, under the real scheduler and the real placement."""
