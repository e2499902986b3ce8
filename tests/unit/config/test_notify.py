"""The section ``notify``, and that nobody sees what must stay secret."""

from __future__ import annotations

import pytest

from slurm_robust.config.errors import ConfigError
from slurm_robust.config.job import JobConfig
from slurm_robust.config.notify import url_problem
from slurm_robust.config.reader import HIDDEN, Layers, as_yaml
from slurm_robust.model.notice import NoticeKind, Severity

SECRET = "T0SECRETT0SECRET"
SLACK = f"https://hooks.slack.com/services/{SECRET}"
RELAY = f"https://relay.example.org/{SECRET}"


def layers(channels: str) -> Layers[JobConfig]:
    made = Layers(JobConfig)
    made.add_yaml(f"notify:\n  channels: {channels}\n".encode(), "job.yaml")
    return made


def refusal(channels: str) -> str:
    with pytest.raises(ConfigError) as found:
        layers(channels).build()
    return str(found.value)


def test_on_is_a_key_and_no_boolean() -> None:
    made = Layers(JobConfig)
    made.add_yaml(
        b"notify:\n  on: [incident, give_up]\n  min_severity: warning\n  channels:\n"
        b"  - {name: a, command: [x], on: [end], min_severity: critical}\n",
        "job.yaml",
    )
    notify = made.build().notify
    assert (notify.on, notify.min_severity) == ((NoticeKind.INCIDENT, NoticeKind.GIVE_UP), Severity.WARNING)
    assert (notify.channels[0].on, notify.channels[0].min_severity) == ((NoticeKind.END,), Severity.CRITICAL)


def test_config_show_hides_a_url() -> None:
    made = layers(f"[{{name: a, url: '{RELAY}'}}, {{name: b, url_file: x}}]")
    shown = as_yaml(made, made.build())
    assert SECRET not in shown
    assert HIDDEN in shown
    assert '"url_file": "x"' in shown


@pytest.mark.parametrize(
    ("channels", "words"),
    [
        (f"[{{name: a, url: '{SLACK}'}}]", "url holds a secret"),
        (f"[{{name: a, url: 'https://me:{SECRET}@example.org/'}}]", "url holds a secret"),
        (f"[{{name: a, url: 'https://example.org/?token={SECRET}'}}]", "url holds a secret"),
        (f"[{{name: a, url: 'ftp://example.org/{SECRET}'}}]", "is not an address"),
        (f"[{{name: a, url: ['{SLACK}']}}]", "must be a URL without a secret"),
        (f"'{SLACK}'", "must be a list"),
        (f"['{SLACK}']", "must be a mapping"),
        (f"[{{name: a, ulr: '{SLACK}'}}]", "unknown key"),
        (f"[{{name: '{SLACK}', command: [x]}}]", "name is"),
        (f"!!int {SLACK}", "is not a int"),
        ("[{name: a}]", "has no way to send anything"),
        ("[{name: a, command: [x], mail: [a@b]}]", "has command and mail"),
        ("[{name: a, command: [x]}, {name: a, command: [x]}]", "two channels have the name 'a'"),
        ("[{name: a, command: [x], timeout_s: 61}]", "timeout_s is 61"),
        ('[{name: a, mail: ["a@b\\nBcc: c@d"]}]', "mail holds what is no address"),
        ("[{name: a, mail: ['a@b,c@d']}]", "mail holds what is no address"),
        ("[{name: a, mail: ['-oQ/tmp']}]", "mail holds what is no address"),
        ("[{name: a, mail: [a@b], mail_from: 'x y'}]", "mail_from holds what is no address"),
    ],
)
def test_refusals_say_what_is_wrong_and_show_no_secret(channels: str, words: str) -> None:
    said = refusal(channels)
    assert words in said
    assert SECRET not in said


def test_what_a_url_may_be() -> None:
    assert url_problem("http://[::1]:8080/x") == ""
    for url in ("", "http://", "//a", "http://a:b/", "http://a\n/", "http://ä/", "http://a/ b"):
        assert url_problem(url)
