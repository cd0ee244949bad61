"""The cluster runtime: processes, threads, gRPC."""
