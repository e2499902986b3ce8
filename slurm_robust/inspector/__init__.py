"""The inspection of a node while training runs: a child of the agent that runs the checks as the job's
user.
"""
