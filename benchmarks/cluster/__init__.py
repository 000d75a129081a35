"""Placements compared on a simulated cluster (`router.simulator`)."""
