"""The inspection of a node beside a training: a child of the agent that runs the checks as the job's user."""
