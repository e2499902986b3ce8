"""``README.txt`` of an incident's folder: what happened, and which file is what. Pure."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator

from slurm_robust.analysis.incidents import Story
from slurm_robust.controller.evidence import words
from slurm_robust.controller.evidence.folder import wanted_generations

WIDTH = 100

_FILES = (
    ("incident.json", "all that the journal has about it, for programs"),
    ("stacks.txt", "what every rank was doing, if stacks were taken: groups of equal stacks, outliers first"),
    ("stacks.json", "the same for programs, with as many ranks as it can hold"),
    ("alerts.txt", "what the inspection of the nodes has seen (kernel log, GPUs, network), if anything"),
    ("alerts.json", "the same for programs"),
)


def readme(story: Story) -> Iterator[str]:
    """The lines of the file."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(story.summary.t))
    yield f"Incident {story.number} of job {story.job_id}, {when} ({story.standing.value})"
    yield ""
    for name, text in words.facts(story):
        yield from _paragraph(f"  {name:<9} ", text)
    yield from ("", "In order (time, seconds since the first sign)")
    for moment in words.moments(story):
        clock = time.strftime("%H:%M:%S", time.localtime(moment.t))
        yield from _paragraph(f"  {clock} {moment.after_s:8.1f}  {moment.what:<11} ", moment.text)
    who, lines = words.deciding_lines(story)
    if who:
        yield from ("", f"Last lines of {who}")
        yield from (f"  | {line}" for line in lines)
    for tested in story.tests:
        yield from ("", f"Tests, {tested.took_s:.1f} s")
        for row in words.result_rows(tested.results):
            what = " ".join(filter(None, (row.text, row.value, f"(limit {row.limit})" if row.limit else "")))
            yield from _paragraph(f"  {row.outcome.value:<8}{row.test}: ", f"{row.nodes}  {what}".rstrip())
    yield from ("", "Files")
    for name, text in (*_FILES, *_logs(story)):
        yield from _paragraph(f"  {name:<16} ", text)
    yield from ("", f"'srobust incident {story.job_id} {story.number}' shows the same.")


def _logs(story: Story) -> Iterator[tuple[str, str]]:
    for generation in wanted_generations(story):
        first = generation == story.generations[0]
        when = "that failed" if first else "launched after it"
        yield f"logs/gen-{generation:03d}/", f"ends of the ranks' output of generation {generation}, {when}"


def _paragraph(head: str, text: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False
    ) or [head.rstrip()]
