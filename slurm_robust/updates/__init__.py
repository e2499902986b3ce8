"""What the owner does with the releases of a job: update it, roll it back, list and compare them."""
