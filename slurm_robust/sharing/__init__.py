"""What of a job may leave its site: evidence without secrets, and on request without names."""
