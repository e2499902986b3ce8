"""The root side of a node: the hooks that Slurm calls, which check it, drain it, and sweep what jobs left."""
