"""The commands of ``srobust``, grouped by purpose, in the order in which help shows them.

Each is a module of this name, which imports what it needs at its top. ``srobust`` imports the module of the
command that is given and no other, so that help and every command begin fast.
"""

from __future__ import annotations

GROUPS = {
    "run a training": {
        "init": "write a batch script and settings for this site, ready to submit",
        "doctor": "find what will hurt a job's recovery, with the fix",
        "run": "run a training inside a Slurm job and keep it going",
        "training": "list trainings, or the jobs of one with their steps and ETTR",
        "checkpoint": "list, verify, export, remove or plan checkpoints",
        "update": "train on with other code, arguments or settings, same nodes",
        "rollback": "return to an earlier release, or withdraw a pending update",
        "releases": "list the releases of a job's code: which run, which were good",
        "diff": "show what differs between two releases of a job's code",
        "notify": "show a job's notification channels, or send a test message",
        "config": "check configuration files, or show the configuration in force",
    },
    "see what happens": {
        "status": "show what runs, what happened and what was done about it",
        "top": "watch jobs live: nodes, steps, what is wrong and what is done",
        "logs": "show and follow the output of rank 0 or of other ranks",
        "incidents": "list what went wrong with a job, or with all jobs",
        "incident": "explain one incident: its timeline and the evidence",
        "report": "report on a whole job or training: ETTR, lost time, incidents",
        "stacks": "show where all ranks are, and which rank blocks the others",
        "trace": "show the life of a job as spans: starts, training, recoveries",
        "classify": "explain from logs what failed, what is to blame, what to do",
    },
    "break and prove": {
        "drill": "break a worker of your own running job, to see it recover",
        "diagnose": "test the nodes of this allocation, or this node",
        "replay": "find a node that computes wrongly by training in small groups",
        "simulate": "play jobs that never ran: ETTR, spares, what a change brings",
        "sandbox": "boot and break a real Slurm cluster on this machine; needs root",
    },
    "administer nodes": {
        "check": "check this node as the hooks do, and show the findings",
        "nodes": "show how often nodes fail, their history, or lemons",
        "spares": "plan, reserve and watch spare nodes that all jobs share",
        "fleet": "show how all jobs of the site fare: ETTR, failures, lost time",
        "admin": "install hooks and checks on nodes, and test drained nodes",
    },
    "about srobust": {
        "completion": "print what makes bash or zsh complete command lines",
        "help": "show this help, or that of a command",
        "version": "print the version",
    },
}
"""By the purpose of a group: each command with its line of help, which fits beside its name in 80 columns."""

HELP = {name: text for commands in GROUPS.values() for name, text in commands.items()}
"""The line of help of each command."""
