"""Texts without secrets and without names."""

from __future__ import annotations

import json

import pytest

from slurm_robust.sharing.neutral import HIDDEN, Names, Neutral, without_secrets

NAMES = Names(
    nodes=("gpu007", "gpu008", "gpu101"),
    hosts=("login1", "hpc.example.org"),
    users=("alice",),
    accounts=("deepmoon",),
    jobs=("4711", "7"),
    works=("moonshot",),
    folders=("/home/alice", "/projects/My Project"),
)


def neutral(text: str) -> str:
    return Neutral(NAMES).text(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rank 2 on gpu007: SIGKILL; gpu008 answers", "rank 2 on n1: SIGKILL; n2 answers"),
        ("requeue without gpu[007-008]", "requeue without n[1-2]"),
        ("gpu055 is not of this job", "n1 is not of this job"),
        ("alice (uid 1000) on login1.hpc.example.org", "user1 (uid 1000) on host1.host2"),
        ("account deepmoon, alice_run3", "account account1, user1_run3"),
        ("job 4711 and 4711/3", "job 1000001 and 1000001/3"),
        ("job 7: step 7 of 70", "job 1000001: step 7 of 70"),
        ('{"job_id":4711,"n":47112}', '{"job_id":1000001,"n":47112}'),
        ("from 10.77.0.12 to fe80::1:2 and ::1 at 10:50:01", "from ip1 to ip2 and ::1 at 10:50:01"),
        ("mail alice@example.org", "mail mail1"),
        ("https://wandb.ai/deepmoon/x?y=1", "https://url1"),
        ("/scratch/secret/train.py:12", "/path1/file1.py:12"),
        ("/projects/My Project/a.py", "/path1/file1.py"),
        ("/home/alice/gpt and ~/gpt/x", "/path1/file1 and /path2/file2"),
        ("/home/alice/jobs/7/logs/gen-001/rank-00002.err", None),
        ("/opt/env/lib/python3.11/site-packages/torch/x.py", "/path1/torch/x.py"),
        ("/usr/lib/x.so, /dev/kmsg, 0.3 s/step, and/or", "/usr/lib/x.so, /dev/kmsg, 0.3 s/step, and/or"),
    ],
)
def test_names_become_neutral_ones(text: str, shown: str | None) -> None:
    found = neutral(text)
    assert "alice" not in found
    assert shown is None or found == shown


def test_the_same_name_is_the_same_in_every_text_and_no_replacement_is_replaced() -> None:
    names = Neutral(Names(nodes=("n2", "n1", "n3"), users=("user2", "user1")))
    assert names.text("n3 n[1-2] user2") == names.text("n3 n[1-2] user2")
    assert names.text("n3") == "n1"
    assert len({names.text(name) for name in ("n1", "n2", "n3")}) == 3


def test_json_stays_json() -> None:
    value = {"job_id": 4711, "node": "gpu007", "cwd": '/home/alice/"x"', "t": 1796018396.9616342, "u": "ä"}
    found = json.loads(neutral(json.dumps(value, ensure_ascii=False)))
    assert (found["job_id"], found["node"], found["t"]) == (1000001, "n1", value["t"])


def test_common_words_are_no_names() -> None:
    words = Neutral(Names(users=("root",), works=("train", "main"), nodes=("node",)))
    assert words.text("File x, in main: root trains the node") == "File x, in main: root trains the node"


def test_secrets_are_hidden() -> None:
    environ = {"WANDB_API_KEY": "0123456789abcdef", "HOME": "/home/alice", "MY_TOKEN": "abc"}
    text = "\n".join(
        (
            "key 0123456789abcdef in /home/alice",
            "hf_abcdefghijklmnopqrstuv ghp_abcdefghijklmnopqrstuv AKIAABCDEFGHIJKLMNOP",
            "Authorization: Bearer x.y.z",
            'password=hunter22 "api_key": "qwertyuiop" --token=tttttttt',
            "-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----",
            "https://alice:pw@host.example/hook?x=1",
            "in a file of keys: curvecurvecurve",
        )
    )
    found = without_secrets(text, environ, known=("curvecurvecurve",))
    for secret in (
        "0123456789abcdef",
        "hf_abc",
        "ghp_abc",
        "AKIAABC",
        "x.y.z",
        "hunter22",
        "qwertyuiop",
        "tttttttt",
        "MIIB",
        ":pw@",
        "x=1",
        "curvecurve",
    ):
        assert secret not in found
    assert found.startswith(f"key {HIDDEN} in /home/alice\n")
    assert "abc" in without_secrets("abc", environ), "a short value is no secret"
