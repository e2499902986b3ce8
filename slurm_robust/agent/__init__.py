"""One process per node: obeys the controller, starts and watches the workers, reports all it knows."""
