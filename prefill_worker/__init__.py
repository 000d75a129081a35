"""What a worker that prefers to compute prompts is set up with, and its Ray actor."""
