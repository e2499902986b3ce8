"""The commands of ``srobust`` in the order in which help shows them, each with its line of help.

Each is a module of this name, which imports what it needs at its top. ``srobust`` imports the module of the
command that is given and no other, so that help and every command begin fast.
"""

from __future__ import annotations

HELP = {
    "run": "run a training inside a Slurm job and keep it going",
    "doctor": "find what in Slurm, the job, its software and its node will hurt a recovery, with the fix",
    "training": "list trainings, or the jobs of one: from which step to which, how each ended, its ETTR",
    "status": "show what runs, what happened and what was done about it",
    "top": "watch jobs live in a terminal: nodes, steps, what is wrong and what is done about it",
    "report": "report on a whole job or training: its ETTR, where its time went, incidents, nodes and starts",
    "logs": "show the output of a training, of rank 0 or of other ranks, and follow it",
    "incidents": "list what went wrong with a job, or with all jobs, what was blamed and what was done",
    "incident": "report on one incident of a job: the timeline and the evidence",
    "stacks": "sample the stacks of all ranks of a running job and name the rank that blocks the others",
    "drill": "break a worker of your own running job, to see that the job recovers",
    "update": "have a running job train with other code, arguments or settings on the same nodes",
    "releases": "list the releases of a job's code: which runs, which were good, who asked for which",
    "rollback": "go back to an earlier release of a job's code, or withdraw an update that waits",
    "diff": "show what differs between two releases of a job's code",
    "classify": "explain from logs what failed, what is to blame and what to do",
    "trace": "show the life of a job as spans: starts and their phases, training, incidents and recoveries",
    "checkpoint": "list, verify, export and remove the checkpoints of a job or a training, or plan them",
    "notify": "show the channels of a job's notifications, and send a test message through every channel",
    "replay": "find a node that computes wrongly by training in small groups of nodes",
    "fleet": "show how all jobs of the site fare: ETTR, failure rates, what time was lost to, "
    "the worst nodes",
    "check": "check this node as the hooks do, and show the findings",
    "diagnose": "test the nodes of this allocation, or this node, and name those that fail",
    "nodes": "show how often nodes fail, their history, or with --lemons those that fail too often",
    "admin": "install the hooks and checks of nodes, and test drained nodes",
    "spares": "plan, reserve and watch spare nodes that all jobs share",
    "sandbox": "boot and break a real multi-node Slurm cluster on this machine, in namespaces; needs root",
    "config": "check a configuration file, or show the configuration in force",
    "version": "print the version",
}
