"""Commands that compute answers again."""
