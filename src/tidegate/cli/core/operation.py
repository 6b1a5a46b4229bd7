"""Commands on a namespace's log and stores: their common options, their coordinator, their report."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, get_type_hints

import typer

from tidegate.cli.core.app import placed, placed_in, print_message
from tidegate.cli.core.config_files import StoreConfigs, WalConfig, stores_given, wal_options
from tidegate.cli.core.options import AllowUnsafe, Force, Json, Namespace, Stores, Wal, confirm
from tidegate.cli.core.output import print_json
from tidegate.committers.background.follower import Standing
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.lifecycle import ask
from tidegate.committers.opening.open import refuse_if_writer_alive, refuse_without_log
from tidegate.committers.opening.store_list import refuse_other_stores
from tidegate.committers.operations.local_coordinator import coordinator_for, followers_in
from tidegate.errors import BY_NAME, ConfigError, StoreUnavailableError, TidegateError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints, StoreRef
from tidegate.sinks.aliases import refuse_writing
from tidegate.sinks.sqlite.discovery import has_instead

Own = ParamSpec("Own")
CLOSING = ("force", "allow_unsafe", "json")
"""The common options that the help lists last."""


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """The common arguments of a command that works on the log and the stores of a namespace."""

    command: str
    """As a user types it, for messages."""
    store: Stores
    wal: Wal
    namespace: Namespace
    store_config: StoreConfigs
    wal_config: WalConfig = None
    force: Force = False
    allow_unsafe: AllowUnsafe = False
    json: Json = False

    @property
    def row(self) -> str:
        """The command's row in ``lifecycle.COMMANDS``."""
        return self.command.removeprefix("tidegate ")

    def stores(self) -> tuple[StoreRef, ...]:
        """Return the stores, with their options. Raises: as ``stores_given``."""
        return stores_given(self.store, self.store_config)

    def endpoints(self, stores: Sequence[StoreRef] | None = None) -> Endpoints:
        """Return the location of the namespace, in these stores instead of the command's."""
        stores = self.stores() if stores is None else stores
        return Endpoints.of(self.namespace, self.wal, stores, wal_options(self.wal_config))

    @contextlib.contextmanager
    def coordinator(
        self,
        where: Endpoints | None = None,
        jobs: int | None = 1,
        key_groups: int | None = None,
        keep_versions: int | None = None,
    ) -> Iterator[Coordinator]:
        """Give a coordinator that is not open yet; without ``where`` at the command's endpoints.

        If the command has opened it, it is closed as a writer at the end, and a driver that it fenced no
        longer counts as running.
        """
        where = where or self.endpoints()
        options = Options(allow_unsafe=self.allow_unsafe, key_groups=key_groups, keep_versions=keep_versions)
        with coordinator_for(where, options, jobs) as coordinator:
            yield coordinator
            if coordinator.epoch:
                _note_closed(coordinator)

    @contextlib.contextmanager
    def writer(
        self, where: Endpoints | None = None, jobs: int | None = 1, *, all_stores: bool = False
    ) -> Iterator[Coordinator]:
        """Give a coordinator that may fence the writer: the namespace exists, and no writer is running.

        The command accepts the marks of others in it.

        ``all_stores``: its stores are exactly those of the log's list. Raises: ConfigError, one of these
        conditions is false; otherwise as ``require_namespace``.
        """
        with self.coordinator(where, jobs) as coordinator:
            require_namespace(coordinator)
            ask(coordinator, self.row)
            if all_stores:
                refuse_other_stores(coordinator, coordinator.folded)
            self.refuse_if_writer_alive(coordinator)
            yield coordinator

    def refuse_if_writer_alive(self, coordinator: Coordinator) -> None:
        """Refuse to run while a writer's heartbeat is young, unless forced. Raises: ConfigError."""
        refuse_if_writer_alive(coordinator, self.command, force=self.force)

    def confirm(self, coordinator: Coordinator, effect: str) -> None:
        """Ask whether to continue, and look again for a writer, which may have come during the question.

        Raises: ConfigError, the answer is no, there is no terminal, or a writer is running.
        """
        confirm(effect)
        self.refuse_if_writer_alive(coordinator)

    def report(
        self,
        facts: dict[str, Any],
        lines: Iterable[str],
        standings: Sequence[Standing] = (),
        next_step: str = "",
    ) -> None:
        """Print the result, as JSON or as lines, with the stores besides the primary.

        It ends the command with the first error's exit code when a store could not be brought to the
        log's end.
        """
        if self.json:
            others = {"stores": stores_as_json(standings)} if standings and "stores" not in facts else {}
            print_json({"namespace": self.namespace, **placed_in(facts), **others})
        else:
            for line in lines:
                print(placed(line))
            for each in standings:
                if not each.error:
                    print(f"store {each.name}: version {each.visible} is visible")
            if next_step:
                print(placed(next_step))
        behind = [each for each in standings if each.error]
        for each in behind:
            print_message(f"store {each.name}: {each.error}")
        if behind:
            kind = BY_NAME.get(behind[0].error.partition(":")[0], StoreUnavailableError)
            raise typer.Exit(kind.exit_code)


def operation(
    command: str, *, without: Sequence[str] = ()
) -> Callable[[Callable[Concatenate[Operation, Own], None]], Callable[..., None]]:
    """Make a command of a function of an ``Operation`` and of the command's own parameters.

    Of its own parameters, keyword-only ones are listed after the common ones in the help, before
    ``CLOSING``; the others before ``--wal-config``. ``without``: names in ``CLOSING`` that it does not take.
    """

    def decorate(function: Callable[Concatenate[Operation, Own], None]) -> Callable[..., None]:
        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        keyword_only = [param for param in own if param.kind is param.KEYWORD_ONLY]
        hints = get_type_hints(Operation, include_extras=True)
        common = {
            field.name: inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=hints[field.name],
                default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            )
            for field in dataclasses.fields(Operation)
            if field.name not in ("command", *without)
        }
        shared_names = list(common)
        closing = [common.pop(name) for name in CLOSING if name in common]
        wal_config = common.pop("wal_config")
        shown = [
            *common.values(),
            *(param for param in own if param not in keyword_only),
            wal_config,
            *keyword_only,
            *closing,
        ]
        call: Callable[..., None] = function

        def run(**arguments: Any) -> None:
            shared = {name: arguments.pop(name) for name in shared_names}
            call(Operation(command, **shared), **arguments)

        functools.update_wrapper(run, function)
        run.__annotations__ = {param.name: param.annotation for param in shown}
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [param.replace(kind=inspect.Parameter.KEYWORD_ONLY) for param in shown]
        )
        return run

    return decorate


def _note_closed(coordinator: Coordinator) -> None:
    try:
        coordinator.store.end_heartbeat(coordinator.epoch)
    except TidegateError as error:
        print_message(
            f"warning: the store did not note that {coordinator.decisions.writer} is closed: {error}"
        )


def require_namespace(coordinator: Coordinator) -> None:
    """Fold the log.

    Raises: ConfigError, there is no namespace here to work on; WalGapError, the store has the
    namespace, the log has nothing.
    """
    if coordinator.decisions.catch_up() is None:
        name = coordinator.endpoints.namespace
        refuse_without_log(coordinator)
        refuse_writing(coordinator.store.where, name, coordinator.store.aliases().get(name))
        raise ConfigError(
            f"there is no namespace {name} at {coordinator.log.where}: check --wal and --namespace; a query's"
            " first batch makes it, and so does `tidegate"
            f" init`{has_instead(coordinator.endpoints.store, name)}"
        )


def catch_up_others(coordinator: Coordinator, jobs: int | None = 1) -> list[Standing]:
    """Bring the stores besides the primary to the log's end, and return their standings."""
    return [follower.catch_up() for follower in followers_in(coordinator, jobs)]


def stores_as_json(standings: Sequence[Standing]) -> list[dict[str, Any]]:
    """Return a JSON object for each store."""
    return [{"name": each.name, "visible": each.visible, "error": each.error or None} for each in standings]


def made_first(recovered: Sequence[int]) -> list[str]:
    """Return the line about versions that had to become visible before the command's own; none for none."""
    return [f"made visible first: version {', '.join(map(str, recovered))}"] if recovered else []
