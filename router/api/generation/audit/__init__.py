"""What an answer was computed from."""
