"""The worker process: engine thread, KV endpoint, gRPC service and metrics, the same for every role."""
