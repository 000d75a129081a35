"""A simulated cluster: the real scheduler and placement over a model of devices and links."""
