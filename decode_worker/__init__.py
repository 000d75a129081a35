"""What a worker that prefers to decode is set up with, and its Ray actor. It is the default worker."""
