"""``braid jobs``: list registrations; ``jobs watch ID`` and ``jobs cancel ID``."""

import argparse

from braid.server.cli.connection import Subparsers, add_address, connect
from braid.server.cli.parser import at_least_one
from braid.server.cli.progress import WORDS, JobProgress
from braid.server.cli.remote import register
from braid.server.cli.text import print_json, print_table, say, seconds_text, shortened, time_text
from braid_client import Client, Job, JobState

COLUMNS = ("id", "model", "version", "state", "done", "left", "changed", "detail")
MOST_DETAIL = 120  # characters; ``--json`` has all


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("jobs", help="list, watch or cancel registrations")
    parser.add_argument("--model", metavar="NAME", default="", help="only this model's")
    parser.add_argument("--limit", metavar="N", type=at_least_one, default=100, help="default: 100")
    parser.add_argument("--json", action="store_true", help="everything, as a JSON list")
    add_address(parser)
    actions = parser.add_subparsers(dest="action", metavar="watch | cancel")
    for action, text in (("watch", "show progress until the job ends"), ("cancel", "end a job")):
        nested = actions.add_parser(action, help=text)
        nested.add_argument("job_id", metavar="ID")
        add_address(nested, nested=True)


def run(args: argparse.Namespace) -> int:
    with connect(args, patient=args.action == "watch") as client:
        if args.action == "watch":
            with JobProgress() as progress:
                job = Job(args.job_id, "", "", JobState.UNKNOWN)
                return register.watch(client, job, args, progress)
        if args.action == "cancel":
            job = client.cancel_job(args.job_id)
            say(f"job {job.id} of {job.model} is {job.state.lower()}")
            return 0
        return _list(client, args)


def _list(client: Client, args: argparse.Namespace) -> int:
    jobs = client.jobs(args.model, limit=args.limit)
    if args.json:
        print_json(jobs)
    elif not jobs:
        print("no jobs")
    else:
        print_table(COLUMNS, map(_row, jobs), right=COLUMNS[4:6], whole=("id", *COLUMNS[3:6]))
    return 0


def _row(job: Job) -> tuple[str, ...]:
    return (
        job.id,
        job.model,
        job.version,
        WORDS.get(job.state.value, job.state.lower()),
        f"{job.progress:.0%}",
        "" if job.ended else seconds_text(job.eta_s),
        time_text(job.updated_unix),
        shortened(job.message or job.detail, MOST_DETAIL),
    )
