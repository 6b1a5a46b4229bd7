"""The number of tasks that stage and apply a batch: the option's, or Spark's current one."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from pyspark.sql import functions

from tidegate.keys.groups import KEY_GROUPS_MAX, check_parallelism, imbalance_of
from tidegate.options import EXECUTORS, Options
from tidegate.spark.batch import is_connect
from tidegate.spark.errors import Py4JError
from tidegate.spark.session.jvm import jvm_context
from tidegate.spark.session.releases import SparkContext

logger = logging.getLogger("tidegate")


def tasks_for(options: Options, session: Any, key_groups: int = KEY_GROUPS_MAX) -> int:
    """Return the parallelism of the next batch.

    A number from the user is used as it is; one from Spark is capped at ``key_groups``, those of the
    namespace, or the most before it is made. Raises:
    ConfigError, the user set more tasks than there are key groups; nothing was written.
    """
    if options.tasks is not None:
        return check_parallelism(options.tasks, key_groups, " in this namespace")
    if is_connect(session):
        slots = slots_of_server(session)
    else:
        context = session.sparkContext
        slots = slots_now(context) if options.parallelism == EXECUTORS else context.defaultParallelism
    return max(1, min(slots, key_groups))


def warn_of_imbalance(namespace: str, tasks: int, key_groups: int) -> None:
    """Log a warning if a task has over ``IMBALANCE_MAX`` more key groups than another."""
    if imbalance := imbalance_of(tasks, key_groups):
        logger.warning("namespace %s: %s", namespace, imbalance)


def slots_now(context: SparkContext) -> int:
    """Return how many tasks the current executors can run at once.

    Spark's default parallelism while there are none, or where Spark does not report it.
    """
    jvm = jvm_context(context)
    try:
        slots = int(jvm.maxNumConcurrentTasks(jvm.resourceProfileManager().defaultResourceProfile()))
    except Py4JError as error:  # not a public API of Spark's
        logger.warning("this Spark does not report its executors' task slots: %s", error)
        slots = 0
    return slots or context.defaultParallelism


@lru_cache(maxsize=1)
def slots_of_server(session: Any) -> int:
    """Return the server's default parallelism, by a small job: the number of parts of a range."""
    parts = session.range(KEY_GROUPS_MAX).select(functions.spark_partition_id().alias("part"))
    return int(parts.agg(functions.max("part")).collect()[0][0]) + 1
