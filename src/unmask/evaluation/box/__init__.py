"""The two programs of the sandbox and what they share; standard library only."""
