"""Random faults in one training, one after the other and into each other's recovery."""
