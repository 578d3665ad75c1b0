"""The loop between server and clients, who takes part in it, and what it refuses."""
