"""Deep networks as flat float32 vectors."""
