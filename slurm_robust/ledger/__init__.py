"""What the time of a job was spent on: each millisecond of it in exactly one class. Pure."""
