"""Placements compared on a simulated cluster (`simulator`)."""
