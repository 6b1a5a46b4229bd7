"""The number of tasks that stage and apply a batch: the option's, or Spark's current one."""

from __future__ import annotations

import logging

from py4j.protocol import Py4JError
from pyspark import SparkContext

from tidegate.keys.groups import KEY_GROUPS_MAX, check_parallelism, imbalance_of
from tidegate.options import EXECUTORS, Options
from tidegate.spark.session.jvm import jvm_context

logger = logging.getLogger("tidegate")


def tasks_for(options: Options, context: SparkContext, key_groups: int = KEY_GROUPS_MAX) -> int:
    """Return the parallelism of the next batch.

    A number from the user is used as it is; one from Spark is capped at ``key_groups``, those of the
    namespace, or the most before it is made. Raises:
    ConfigError, the user set more tasks than there are key groups; nothing was written.
    """
    if options.tasks is not None:
        return check_parallelism(options.tasks, key_groups, " in this namespace")
    slots = slots_now(context) if options.parallelism == EXECUTORS else context.defaultParallelism
    return max(1, min(slots, key_groups))


def warn_of_imbalance(namespace: str, tasks: int, key_groups: int) -> None:
    """Log a warning if a task has over ``IMBALANCE_MAX`` more key groups than another."""
    if found := imbalance_of(tasks, key_groups):
        logger.warning("namespace %s: %s", namespace, found)


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
