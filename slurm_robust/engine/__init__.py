"""The decision half of a job: core, units, stages; pure, without clock, file or socket."""
