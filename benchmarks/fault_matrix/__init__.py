"""Every fault that can be planted in the sandbox, what it should lead to, and what it led to."""
