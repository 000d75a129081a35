"""What a model is, as config.json tells it. Nothing here imports torch: the router reads it too."""
