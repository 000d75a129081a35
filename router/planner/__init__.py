"""Which mode, split and tensor parallelism serve a load best, predicted before any GPU is used."""
