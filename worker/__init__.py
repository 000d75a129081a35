"""The shell that every worker has, whatever its role: engine thread, gRPC service, metrics."""
