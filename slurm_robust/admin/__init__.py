"""What an administrator does for the whole cluster: install, verify, quarantine, history."""
