"""Random lives by the policy alone: specs that nobody would write, what each life promises, and shrinking."""
