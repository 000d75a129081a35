"""`router doctor`: checks a machine, or the nodes of a cluster, before Baton is started there."""

from router.cli.doctor.command import run

__all__ = ["run"]
