"""``tidegate key-groups``: how evenly a number of key groups is distributed to tasks."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.core.options import Json, examples
from tidegate.cli.core.output import print_json, print_table
from tidegate.keys.groups import KEY_GROUPS_DEFAULT, KEY_GROUPS_MAX, check_key_groups, shares

EXAMPLES = examples(
    "tidegate key-groups --parallelism 7 --parallelism 48",
    "tidegate key-groups --key-groups 10000 --parallelism 900    # Heron's example: 9.1 %",
)


def key_groups(
    parallelism: Annotated[
        list[int],
        typer.Option(
            "--parallelism", metavar="P", min=1, help="Number of tasks; may be given several times."
        ),
    ],
    key_groups: Annotated[
        int, typer.Option(metavar="N", help=f"Number of key groups, at most {KEY_GROUPS_MAX:,}.")
    ] = KEY_GROUPS_DEFAULT,
    *,
    json: Json = False,
) -> None:
    """Show how evenly key groups go to tasks. Needs neither log nor store.

    The imbalance is how much more the fullest task has than the others, when keys spread evenly
    over the key groups: at most 1 in (key groups / tasks).
    """
    check_key_groups(key_groups)
    distributions = [shares(tasks, key_groups) for tasks in parallelism]
    if json:
        print_json(
            [
                {"key_groups": key_groups, **share._asdict(), "imbalance": share.imbalance}
                for share in distributions
            ]
        )
        return
    print_table(
        ["tasks", "key groups each", "tasks with one more", "imbalance"],
        [(s.parallelism, s.smallest, s.with_one_more, f"{100 * s.imbalance:.1f} %") for s in distributions],
    )
