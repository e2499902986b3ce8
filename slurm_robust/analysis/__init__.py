"""Pure conclusions from logs, step records, stacks, replays and histories: nothing touches the machine."""
