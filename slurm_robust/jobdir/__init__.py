"""The folder of a job in its place: whose it is, and that it is still there."""
