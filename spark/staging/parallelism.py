"""How many tasks stage and apply a batch: what the option says, or what Spark has now."""

from __future__ import annotations

import logging

from py4j.protocol import Py4JError
from pyspark import SparkContext

from tidegate.keys.groups import check_parallelism
from tidegate.options import EXECUTORS, Options
from tidegate.spark.jvm import jvm_context

logger = logging.getLogger("tidegate")


def tasks_for(options: Options, context: SparkContext, key_groups: int) -> int:
    """The parallelism of the next batch.

    A number that the user named is taken as it is; one that Spark tells is cut to ``key_groups``.
    ConfigError: the user named more tasks than there are key groups; nothing was written.
    """
    if options.tasks is not None:
        return check_parallelism(options.tasks, key_groups, " in this namespace")
    slots = slots_now(context) if options.parallelism == EXECUTORS else context.defaultParallelism
    return max(1, min(slots, key_groups))


def slots_now(context: SparkContext) -> int:
    """How many tasks the executors that are there now can run at once.

    Spark's default parallelism while there are none, or where Spark does not tell.
    """
    jvm = jvm_context(context)
    try:
        slots = int(jvm.maxNumConcurrentTasks(jvm.resourceProfileManager().defaultResourceProfile()))
    except Py4JError as error:  # not a public API of Spark's
        logger.warning("this Spark does not tell its executors' task slots: %s", error)
        slots = 0
    return slots or context.defaultParallelism
