"""The worker side: what a training script uses, and how a worker process comes to be."""
