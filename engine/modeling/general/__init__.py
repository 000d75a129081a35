"""Models that run transformers' own modules on the engine's pages. Imports transformers, an extra."""
