"""Public helpers to test operators and transports."""
