"""The checkpoints of a job or a training, as a person handles them: list, verify, export, remove."""
