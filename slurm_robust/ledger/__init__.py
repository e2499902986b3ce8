"""Where the time of a job went: each millisecond of it in exactly one class. Pure."""
