"""A job's life as spans, and a collector that gets them over real HTTP."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model import startup
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.startup import PhaseTimes
from slurm_robust.report import trace
from slurm_robust.report.job_view import JobView
from slurm_robust.report.trace import trace_of
from slurm_robust.telemetry.spans import NotSent, TraceSpan, by_parent, endpoint_of, span_id, trace_id
from tests.unit.report import incident_journal


def spans(events: list[ev.AnyEvent]) -> dict[str, TraceSpan]:
    return {span.key: span for span in trace_of(JobView(events=events)).spans}


def test_a_whole_job_is_one_tree() -> None:
    found = trace_of(JobView(events=incident_journal.whole()))
    keys = [span.key for span in found.spans]
    assert len(set(keys)) == len(keys)
    assert {span.parent for span in found.spans} <= {"", *keys}
    assert [span.name for span in by_parent(found.spans)[""]] == ["application"]
    root = found.spans[0]
    assert all(span.begin <= span.end for span in found.spans)
    assert all(root.begin <= span.end <= root.end for span in found.spans)
    assert root.attributes["process.exit.code"] != 0
    assert root.error
    assert found.attributes["session_tag"] == "r"


def test_an_incident_is_dated_back_to_the_fault_with_its_verdict() -> None:
    events = [*incident_journal.start(), *incident_journal.node_lost()]
    (opened,) = [event for event in events if isinstance(event, ev.IncidentOpened)]
    one = spans(events)[f"incident {opened.incident}"]
    assert one.begin == opened.t - opened.detect_s
    assert one.name == "srobust.incident"
    assert one.attributes["srobust.blame"] == "node"
    assert one.attributes["srobust.suspects"] == "n2"
    assert "evict" in str(one.attributes["srobust.actions"])
    assert one.error.startswith("node lost")


def test_stages_of_a_recovery_follow_each_other_from_the_fault() -> None:
    events = [*incident_journal.start(), *incident_journal.rank_killed()]
    place = next(i for i, event in enumerate(events) if isinstance(event, ev.IncidentClosed))
    events[place] = structs.replace(events[place], stages={"detecting": 0.5, "first step": 1.5})
    parts = by_parent(trace_of(JobView(events=events)).spans)["incident 1"]
    assert [(span.name, span.seconds) for span in parts] == [
        ("srobust.recovery.detecting", 0.5),
        ("srobust.recovery.first_step", 1.5),
    ]
    assert parts[0].end == parts[1].begin


def test_start_phases_have_the_names_of_one_logger_and_end_where_training_begins() -> None:
    events = incident_journal.start()
    launched = next(event for event in events if isinstance(event, ev.GenerationLaunched))
    phases = ((startup.ZYGOTE, 3.0), (startup.LAUNCH, 1.0), (startup.GROUP, 2.0), (startup.RESTORE, 4.0))
    measured = ev.StartMeasured(
        t=launched.t + 7,
        generation=launched.generation,
        phases=tuple(PhaseTimes(phase=p, median_s=s, nodes={"n1": s}, measured=1) for p, s in phases),
    )
    ended = ev.GenerationEnded(t=launched.t + 60, generation=launched.generation, reason="over")
    key = f"generation {launched.generation}"
    parts = by_parent(trace_of(JobView(events=[*events, measured, ended])).spans)[key]
    assert [span.name for span in parts if span.name != "training_loop"] == [
        "srobust.start.zygote",
        "srobust.start.launch",
        "distributed_code_initialization",
        "checkpoint_load",
    ]
    assert spans([*events, measured, ended])[key].begin == launched.t - 3.0
    assert parts[1].begin == launched.t


def test_what_goes_on_is_left_out_until_it_has_ended() -> None:
    events = incident_journal.start()
    assert spans(events) == {}
    assert "application" not in spans([*events, *incident_journal.rank_killed()])


def test_an_empty_journal_has_no_spans() -> None:
    assert trace_of(JobView(events=[])).spans == ()


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("https://c.example/", "https://c.example/v1/traces"),
        ("http://c/otlp/v1/traces", "http://c/otlp/v1/traces"),
    ],
)
def test_the_usual_path_is_added(url: str, endpoint: str) -> None:
    assert endpoint_of(url) == endpoint


@pytest.mark.parametrize("url", ["localhost:4318", "ftp://x", "", "http://"])
def test_what_is_no_address_is_wrong_usage(url: str) -> None:
    with pytest.raises(NotSent, match="is no address of a collector") as told:
        endpoint_of(url)
    assert told.value.exit_code == ExitCode.USAGE


# -- a collector -----------------------------------------------------------------------------------


class Collector(HTTPServer):
    """Takes traces, or refuses them."""

    def __init__(self, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), Taking)
        self.status = status
        self.taken: list[tuple[str, bytes]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Taking(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        packed = self.headers.get("Content-Encoding") == "gzip"
        self.server.taken.append((self.path, gzip.decompress(body) if packed else body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    thread = threading.Thread(target=found.serve_forever, args=(0.02,))
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture
def job(tmp_path: Path) -> JobDirectory:
    directory = JobDirectory(tmp_path / "4711")
    directory.path.mkdir()
    incident_journal.write(directory, incident_journal.whole())
    return directory


def test_a_collector_gets_every_span_with_its_ids_and_times(
    job: JobDirectory, collector: Collector, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="pip install 'slurm_robust[admin]'")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    assert trace.main(str(job.path), otlp=collector.url, perfetto=None, json=False, job_dir=None) == 0
    expected = trace_of(JobView(events=incident_journal.whole()))
    assert capsys.readouterr().out == f"{len(expected.spans)} spans sent to {collector.url}\n"
    ((path, body),) = collector.taken
    assert path == "/v1/traces"
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert {"service.name", "slurm.job.id", "world_size"} <= {
        each.key for each in resource.resource.attributes
    }
    sent = {span.span_id: span for scope in resource.scope_spans for span in scope.spans}
    assert len(sent) == len(expected.spans)
    for span in expected.spans:
        found = sent[span_id(expected.key, span.key).to_bytes(8, "big")]
        assert found.trace_id == trace_id(expected.key).to_bytes(16, "big")
        assert (found.name, found.start_time_unix_nano) == (span.name, int(span.begin * 10**9))
        parent = span_id(expected.key, span.parent).to_bytes(8, "big") if span.parent else b""
        assert found.parent_span_id == parent


def test_a_collector_that_refuses_is_an_error_with_its_words(collector: Collector) -> None:
    otlp = pytest.importorskip("slurm_robust.telemetry.otlp", reason="pip install 'slurm_robust[admin]'")
    collector.status = 400
    with pytest.raises(NotSent, match=r"did not take the spans: .*400"):
        otlp.send(trace_of(JobView(events=incident_journal.whole())), collector.url)


def test_json_has_all_of_it(job: JobDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert trace.main(str(job.path), otlp=None, perfetto=None, json=True, job_dir=None) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["spans"]) == len(trace_of(JobView(events=incident_journal.whole())).spans)
    assert trace.main(str(job.path), otlp=None, perfetto=None, json=False, job_dir=None) == 0
    assert "training_loop" in capsys.readouterr().out


def test_the_spans_name_their_nodes(job: JobDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert trace.main(str(job.path), otlp=None, perfetto=None, json=False, job_dir=None) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("srobust.generation" in line and line.endswith("4 nodes") for line in lines)
    assert any("node lost" in line and line.endswith("n2") for line in lines)


def test_perfetto_gets_the_trace_events_of_chrome_with_a_row_for_each_node(
    job: JobDirectory, tmp_path: Path
) -> None:
    target = tmp_path / "job.json"
    assert trace.main(str(job.path), otlp=None, perfetto=target, json=False, job_dir=None) == 0
    found = json.loads(target.read_bytes())
    assert set(found) == {"displayTimeUnit", "traceEvents"}
    events = found["traceEvents"]
    for event in events:  # the required fields of the format, by the phase of the event
        assert {"name", "ph", "pid", "tid"} <= set(event)
        assert event["ph"] in ("X", "M")
        assert event["ph"] == "M" or (event["ts"] > 0 and event["dur"] >= 0)
        assert event["ph"] == "X" or event["args"]
    rows = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    assert {"job", "incidents", "n1", "n2"} <= set(rows)
    on_n2 = [event["name"] for event in events if event["ph"] == "X" and event["tid"] == rows["n2"]]
    assert on_n2[0] == "slot 1, generation 1"
    assert "evicted" in on_n2
    for name, row in rows.items():  # one span lies within another or beside it, as viewers need it
        spans = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == row]
        crossing = [(a, c) for a, b in spans for c, d in spans if a + 10 < c < b - 10 < d - 20]
        assert crossing == [], name


def test_a_file_that_cannot_be_written_is_an_error(job: JobDirectory, tmp_path: Path) -> None:
    with pytest.raises(trace.TraceNotWritten):
        trace.main(str(job.path), otlp=None, perfetto=tmp_path / "no" / "x", json=False, job_dir=None)
