"""`router doctor`: is this machine fit for a cluster? Asked before one is started."""

from router.cli.doctor.command import run

__all__ = ["run"]
