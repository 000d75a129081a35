"""What a model may have, each with its numbers: attention, experts, latents, states."""
