"""What the controller writes about an incident and a person reads later: bundles, texts, stacks."""
