"""One process per node: obeys the controller, starts and watches the workers, tells all it knows."""
