"""`router doctor`: checks a machine, or the nodes of a cluster, before Baton is started there."""
