"""The encode worker, and rows of images from worker to worker."""
