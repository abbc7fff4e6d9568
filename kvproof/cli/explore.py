"""`kvproof explore`: everything that can happen to the real runtime within small bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kvproof.cli.options import (
    JOBS,
    FailurePolicy,
    Jobs,
    ProfileName,
    WhenLoadsFail,
    profile_of,
    require_folder,
)

if TYPE_CHECKING:
    from kvproof.verify.explorer import Exploration, Explored, Scope

REQUESTS_MAX = 8

Chunks = Annotated[bool, typer.Option("--chunks", help="Admit a request if its first chunk fits.")]
PrefixCaching = Annotated[
    bool, typer.Option("--prefix-caching", help="Share blocks; all prompts begin alike.")
]
Starvation = Annotated[
    bool, typer.Option("--starvation", help="Look for who is passed over for ever, too.")
]


def explore(
    *,
    profile: Annotated[ProfileName, typer.Option(help="Whose rules.")] = ProfileName.SAFE,
    policy: Annotated[str, typer.Option(metavar="fcfs|priority", help="The order.")] = "fcfs",
    requests: Annotated[int, typer.Option(min=1, max=REQUESTS_MAX, help="Requests at once.")] = 2,
    blocks: Annotated[int, typer.Option(min=1, max=32, help="Blocks that can be used.")] = 5,
    block_size: Annotated[int, typer.Option(min=1, max=8, help="Tokens of a block.")] = 2,
    inflight: Annotated[int, typer.Option(min=1, max=3, help="Steps in flight.")] = 1,
    lookahead: Annotated[int, typer.Option(min=0, max=8, help="Slots beyond the tokens.")] = 0,
    chunks: Chunks = False,
    prefix_caching: PrefixCaching = False,
    kv_load_failure_policy: WhenLoadsFail = FailurePolicy.RECOMPUTE,
    starvation: Starvation = False,
    first: Annotated[bool, typer.Option("--first", help="End with the first fault.")] = False,
    most_states: Annotated[
        int | None, typer.Option(min=1, help="Give a workload up beyond so many states.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", dir_okay=False, help="Write results.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", dir_okay=False, help="Keep there what is done; go on from it."
        ),
    ] = None,
    workloads: Annotated[
        Path | None,
        typer.Option(metavar="DIR", file_okay=False, help="Write freezes there as recordings."),
    ] = None,
    jobs: Jobs = JOBS,
) -> None:
    """Explore the runtime: 0 nothing found, 1 a fault, 3 not all was explored, 2 usage."""
    from kvproof.verify.explorer import Scope

    if policy not in ("fcfs", "priority"):
        raise typer.BadParameter(f"{policy!r} is no policy; give fcfs or priority.")
    for file in (json_file, resume):
        require_folder(file)
    scope = Scope(
        profile=profile_of(profile),
        policy=policy,
        requests=requests,
        blocks=blocks,
        block_size=block_size,
        in_flight=inflight,
        lookahead=lookahead,
        admits_whole=not chunks,
        caches_prefixes=prefix_caching,
        failure_policy=kv_load_failure_policy.value,
    )
    _explore(
        scope,
        jobs=jobs,
        first=first,
        starvation=starvation,
        most_states=most_states,
        resume=resume,
        json_file=json_file,
        workloads=workloads,
    )


def _explore(
    scope: Scope,
    *,
    jobs: int,
    first: bool,
    starvation: bool,
    most_states: int | None,
    resume: Path | None,
    json_file: Path | None,
    workloads: Path | None,
) -> None:
    from kvproof.cli.explore_progress import watched
    from kvproof.verify.explorer import report

    console = Console()
    console.print(report.bound(scope), highlight=False, markup=False)
    done = _done(scope, resume)
    result = watched(
        console,
        scope,
        done,
        resume=resume,
        jobs=jobs,
        first=first,
        most_states=most_states,
        starvation=starvation,
    )
    report.show(console, result)
    if workloads is not None:
        _write_workloads(console, result, workloads)
    if json_file is not None:
        json_file.write_text(json.dumps(report.to_json(result), indent=1) + "\n", encoding="utf-8")
    raise typer.Exit(report.exit_code(result))


def _done(scope: Scope, resume: Path | None) -> list[Explored]:
    from kvproof.verify.explorer import checkpoint

    if resume is None or not resume.exists():
        return []
    try:
        return checkpoint.read(resume, scope)
    except checkpoint.CheckpointError as error:
        raise typer.BadParameter(str(error)) from error


def _write_workloads(console: Console, result: Exploration, folder: Path) -> None:
    """Write each freeze and livelock that a recorder can be told, and say of the others why not."""
    from kvproof.verify.explorer.recorded_workload import NotSayableError, recorded_workload

    folder.mkdir(parents=True, exist_ok=True)
    for number, finding in enumerate(result.findings, start=1):
        if not finding.loop:
            continue
        path = folder / f"{number:02}-{finding.kind}.jsonl"
        try:
            path.write_text(recorded_workload(result.scope, finding), encoding="utf-8")
        except NotSayableError as error:
            console.print(f"{number}. no recording: {error}", markup=False, highlight=False)
        else:
            console.print(f"{number}. {path}", markup=False, highlight=False)
