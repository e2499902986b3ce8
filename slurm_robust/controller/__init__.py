"""The controller: one per job. A pure core decides, a loop with sockets and files acts."""
