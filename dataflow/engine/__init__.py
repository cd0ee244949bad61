"""Sans-I/O engine and coordinator."""
