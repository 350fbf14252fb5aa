"""HTTP: our own protocol and those that clients already speak."""
